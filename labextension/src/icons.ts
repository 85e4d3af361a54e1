import { LabIcon } from '@jupyterlab/ui-components';

/** A minus. */
export const removeIcon = new LabIcon({
  name: 'nbdist:remove',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <path class="jp-icon3 jp-icon-selectable" fill="#616161" d="M19 13H5v-2h14z"/>
</svg>`
});

/** Tasks around a shared centre: nbdist's icon, also on the panel's tab. */
export const nbdistIcon = new LabIcon({
  name: 'nbdist:sidebar',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3 jp-icon-selectable" fill="#616161">
    <path d="M11.2 11.2 5.6 6.3l.9-1 5.6 4.9zM12.8 11.2l5.6-4.9-.9-1-5.6 4.9zM11.3 12h1.4v7h-1.4z"/>
    <circle cx="12" cy="11.5" r="3.4"/>
    <circle cx="4.8" cy="5" r="2.6"/>
    <circle cx="19.2" cy="5" r="2.6"/>
    <circle cx="12" cy="20" r="2.6"/>
  </g>
</svg>`
});

/** Bars of different heights: TensorBoard. */
export const tensorboardIcon = new LabIcon({
  name: 'nbdist:tensorboard',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <path class="jp-icon3 jp-icon-selectable" fill="#616161" d="M4 12h4v8H4zM10 4h4v16h-4zM16 9h4v11h-4z"/>
</svg>`
});

/** Run on several engines: the toolbar's triangle with two more behind it. */
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
