import type { ComponentType, ReactElement } from 'react';
import type { ITranslator } from '@jupyterlab/translation';
import { addIcon, Button, type LabIcon, ReactWidget, refreshIcon, SidePanel } from '@jupyterlab/ui-components';
import type { IDisposable } from '@lumino/disposable';
import type { Message } from '@lumino/messaging';
import type { AccordionPanel } from '@lumino/widgets';
import { nbdistIcon } from '../icons';
import { Clusters } from './clusters';
import type { SidebarModel } from './model';
import { Notices } from './notices';
import { Runs } from './runs';
import { SectionStore } from './store';
import { Sweeps } from './sweeps';
import { Tasks } from './tasks';

export const PANEL_ID = 'nbdist-panel';

/** The panel: clusters, the chosen one's tasks, runs and sweeps. It requests data only while it is visible. */
export class Sidebar extends SidePanel {
  constructor(
    private readonly model: SidebarModel,
    translator: ITranslator | undefined
  ) {
    super({ translator });
    const { trans, feed } = model.nbdist;
    this.id = PANEL_ID;
    this.addClass('nbd-Panel');
    this.node.tabIndex = -1;
    this.title.icon = nbdistIcon;
    this.title.caption = trans.__('nbdist: clusters, tasks, runs and sweeps');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('nbdist'));
    this.content.node.setAttribute('aria-label', trans.__('Clusters, tasks, runs and sweeps'));
    this.toolbar.node.setAttribute('aria-label', trans.__('nbdist'));
    this.toolbar.addItem(
      'start',
      new ToolButton({
        icon: addIcon,
        label: trans.__('Start a cluster…'),
        tooltip: trans.__('Start a cluster that runs until it is stopped'),
        onClick: () => void model.commands.execute('nbdist:start-cluster')
      })
    );
    this.toolbar.addItem(
      'refresh',
      new ToolButton({
        icon: refreshIcon,
        tooltip: trans.__('Refresh'),
        onClick: () => void feed.refresh()
      })
    );
    this.header.addWidget(new SidebarSection(model, Notices, 'notices', ''));
    this.addWidget(new SidebarSection(model, Clusters, 'clusters', trans.__('Clusters')));
    this.addWidget(new SidebarSection(model, Tasks, 'tasks', trans.__('Tasks')));
    this.addWidget(new SidebarSection(model, Runs, 'runs', trans.__('Runs')));
    this.addWidget(new SidebarSection(model, Sweeps, 'sweeps', trans.__('Sweeps')));
    (this.content as AccordionPanel).setRelativeSizes([3, 4, 5, 3]); // until the user changes them
  }

  override dispose(): void {
    this.follow(false);
    this.model.dispose();
    super.dispose();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.follow(this.isVisible);
  }

  /** Move the keyboard focus into the panel, after a command has opened it. */
  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    const first = this.content.node.querySelector<HTMLElement>('[data-stop][tabindex="0"]');
    (first ?? this.toolbar.node.querySelector('button') ?? this.node).focus();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.follow(true);
  }

  protected override onBeforeHide(message: Message): void {
    this.follow(false);
    super.onBeforeHide(message);
  }

  protected override onBeforeDetach(message: Message): void {
    this.follow(false);
    super.onBeforeDetach(message);
  }

  private follow(seen: boolean): void {
    if (seen && !this.shown) {
      this.shown = this.model.nbdist.feed.addView(this);
      void this.model.loadAbout();
    } else if (!seen) {
      this.shown?.dispose();
      this.shown = null;
    }
  }

  private shown: IDisposable | null = null;
}

/** One section of the panel, with a component that renders a part of the state. */
export class SidebarSection extends ReactWidget {
  constructor(
    model: SidebarModel,
    private readonly view: ComponentType<{ store: SectionStore }>,
    name: string,
    label: string
  ) {
    super();
    this.store = new SectionStore(model);
    this.id = `nbdist-${name}`;
    this.title.label = label;
    this.addClass('nbd-Section');
    this.addClass(`nbd-mod-${name}`);
  }

  override dispose(): void {
    this.store.dispose();
    super.dispose();
  }

  protected override render(): ReactElement {
    const View = this.view;
    return <View store={this.store} />;
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.store.setVisible(true);
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.store.setVisible(this.isVisible);
  }

  protected override onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this.store.setVisible(false);
  }

  protected override onBeforeDetach(message: Message): void {
    this.store.setVisible(false);
    super.onBeforeDetach(message);
  }

  private readonly store: SectionStore;
}

interface ToolProps {
  icon: LabIcon;
  label?: string;
  tooltip: string;
  onClick: () => void;
}

/**
 * A button of the panel's toolbar.
 *
 * JupyterLab's `ToolbarButton` has aria-pressed="false", so that screen readers announce a toggle button.
 */
export class ToolButton extends ReactWidget {
  constructor(private readonly props: ToolProps) {
    super();
    this.addClass('jp-ToolbarButton');
  }

  protected override render(): ReactElement {
    const { icon: Icon, label, tooltip, onClick } = this.props;
    return (
      <Button className="jp-ToolbarButtonComponent" aria-label={label ?? tooltip} title={tooltip} onClick={onClick}>
        <Icon.react tag="span" elementSize="normal" />
        {label && <span className="jp-ToolbarButtonComponent-label">{label}</span>}
      </Button>
    );
  }
}
