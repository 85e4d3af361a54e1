import type { ITranslator } from '@jupyterlab/translation';
import { addIcon, refreshIcon, SidePanel } from '@jupyterlab/ui-components';
import type { IDisposable } from '@lumino/disposable';
import type { Message } from '@lumino/messaging';
import type { AccordionPanel } from '@lumino/widgets';
import { Clusters } from './clusters';
import { nbdistIcon } from './icon';
import type { PanelModel } from './model';
import { Notices } from './notices';
import { Runs } from './runs';
import { Section } from './section';
import { Sweeps } from './sweeps';
import { Tasks } from './tasks';
import { Tool } from './tool';

export const PANEL_ID = 'nbdist-panel';

/** The panel: clusters, the chosen one's tasks, runs and sweeps. The server is read only while it is seen. */
export class Sidebar extends SidePanel {
  constructor(
    private readonly model: PanelModel,
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
      new Tool({
        icon: addIcon,
        label: trans.__('Start a cluster…'),
        tooltip: trans.__('Start a cluster that runs until it is stopped'),
        onClick: () => void model.commands.execute('nbdist:start-cluster')
      })
    );
    this.toolbar.addItem(
      'refresh',
      new Tool({
        icon: refreshIcon,
        tooltip: trans.__('Refresh'),
        onClick: () => void feed.refresh()
      })
    );
    this.header.addWidget(new Section(model, Notices, 'notices', ''));
    this.addWidget(new Section(model, Clusters, 'clusters', trans.__('Clusters')));
    this.addWidget(new Section(model, Tasks, 'tasks', trans.__('Tasks')));
    this.addWidget(new Section(model, Runs, 'runs', trans.__('Runs')));
    this.addWidget(new Section(model, Sweeps, 'sweeps', trans.__('Sweeps')));
    (this.content as AccordionPanel).setRelativeSizes([3, 4, 5, 3]); // until the user has others
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
      this.shown = this.model.nbdist.feed.show(this);
      void this.model.learn();
    } else if (!seen) {
      this.shown?.dispose();
      this.shown = null;
    }
  }

  private shown: IDisposable | null = null;
}
