import type { ReactElement, ReactNode } from 'react';

/** JupyterLab's parts that the views use, without its style sheets: those need its bundler. */
const icon = (name: string): object => ({ name, react: () => <i data-icon={name} /> });

export const fakeComponents = (): object => ({
  ReactWidget: class {},
  LabIcon: class {
    react = (): ReactElement => <i />;
  },
  Button: ({ minimal: _, small: __, children, ...others }: Record<string, ReactNode>): ReactElement => (
    <button {...(others as object)}>{children}</button>
  ),
  InputGroup: ({ rightIcon: _, inputRef: __, ...others }: Record<string, unknown>): ReactElement => (
    <input {...(others as object)} />
  ),
  ...Object.fromEntries(
    [
      'addIcon', 'closeIcon', 'codeIcon', 'ellipsesIcon', 'folderIcon', 'launchIcon', 'pauseIcon', 'refreshIcon', 'runIcon', 'settingsIcon', 'stopIcon'
    ].map(name => [name, icon(name)])
  )
});
