import { memo, type ReactElement } from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Curve } from '../api/items';
import { curvePath, curveText } from './curve';

interface SparklineProps {
  name: string;
  curve: Curve;
  trans: TranslationBundle;
}

const [WIDTH, HEIGHT] = [64, 20];

/** A curve in the size of a word. */
export const Sparkline = memo(function Sparkline({ name, curve, trans }: SparklineProps): ReactElement | null {
  const path = curvePath(curve, WIDTH, HEIGHT);
  if (!path) {
    return null;
  }
  const text = curveText(name, curve, trans);
  return (
    <svg className="nbd-Sparkline" width={WIDTH} height={HEIGHT} role="img" aria-label={text}>
      <title>{text}</title>
      <path d={path} fill="none" stroke="currentColor" strokeWidth="1.25" />
    </svg>
  );
});

interface ProgressProps {
  /** What goes on, for those who listen. */
  label: string;
  /** 0 to 100; null where nobody knows how much there is to do. */
  percent: number | null;
  /** What it says of itself, such as "340 of 1000". */
  text: string;
  state: string;
}

/** How far something is. */
export function Progress({ label, percent, text, state }: ProgressProps): ReactElement {
  return (
    <div
      className={`nbd-Progress nbd-mod-${state}`}
      role="progressbar"
      aria-label={label}
      aria-valuetext={text}
      {...(percent === null ? {} : { 'aria-valuenow': percent, 'aria-valuemin': 0, 'aria-valuemax': 100 })}
    >
      <div style={{ width: `${percent ?? 0}%` }} />
    </div>
  );
}
