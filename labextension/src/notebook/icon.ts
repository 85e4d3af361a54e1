import { LabIcon } from '@jupyterlab/ui-components';

/** Run, on several: the toolbar's triangle with two more behind it. */
export const runDistributedIcon = new LabIcon({
  name: 'nbdist:run-distributed',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3" fill="#616161">
    <path d="M3 5v14l8.5-7z"/>
    <path opacity="0.75" d="M9.7 5v2.9l4.9 4.1-4.9 4.1V19l8.4-7z"/>
    <path opacity="0.5" d="M15.3 5v2.9l4.9 4.1-4.9 4.1V19l8.4-7z"/>
  </g>
</svg>`
});
