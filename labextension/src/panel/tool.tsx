import type { ReactElement } from 'react';
import { Button, type LabIcon, ReactWidget } from '@jupyterlab/ui-components';

interface ToolProps {
  icon: LabIcon;
  label?: string;
  tooltip: string;
  onClick: () => void;
}

/**
 * A button of the panel's toolbar.
 *
 * JupyterLab's `ToolbarButton` says "not pressed" of what is never pressed down, which no screen reader should say.
 */
export class Tool extends ReactWidget {
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
