import type { ComponentType, ReactElement } from 'react';
import { ReactWidget } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import type { PanelModel } from './model';
import { Watch } from './watch';

/** One section of the panel, in which a component draws what it watches. */
export class Section extends ReactWidget {
  constructor(
    model: PanelModel,
    private readonly view: ComponentType<{ watch: Watch }>,
    name: string,
    label: string
  ) {
    super();
    this.watch = new Watch(model);
    this.id = `nbdist-${name}`;
    this.title.label = label;
    this.addClass('nbd-Section');
    this.addClass(`nbd-mod-${name}`);
  }

  override dispose(): void {
    this.watch.dispose();
    super.dispose();
  }

  protected override render(): ReactElement {
    const View = this.view;
    return <View watch={this.watch} />;
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.watch.show(true);
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.watch.show(this.isVisible);
  }

  protected override onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this.watch.show(false);
  }

  protected override onBeforeDetach(message: Message): void {
    this.watch.show(false);
    super.onBeforeDetach(message);
  }

  private readonly watch: Watch;
}
