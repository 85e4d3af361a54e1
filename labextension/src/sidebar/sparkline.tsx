import { memo, type ReactElement } from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Curve } from '../api/items';
import { formatNumber } from './format';

/** The SVG path of a curve in a box of the given size; empty with fewer than two points. `range`: the values at its edges. */
export function curvePath({ x, y }: Curve, width: number, height: number, range?: [number, number]): string {
  const count = Math.min(x.length, y.length);
  if (count < 2) {
    return '';
  }
  const left = x[0]!;
  const across = x[count - 1]! - left || 1;
  const [low, high] = range ?? spanOf(y);
  let path = '';
  for (let index = 0; index < count; index += 1) {
    const right = ((x[index]! - left) / across) * (width - 2) + 1;
    const up = high > low ? (y[index]! - low) / (high - low) : 0.5;
    path += `${index ? 'L' : 'M'}${tenths(right)} ${tenths((1 - up) * (height - 2) + 1)}`;
  }
  return path;
}

/** The trend of a curve: its last quarter compared with the quarter before, relative to its range. */
export function trendOf({ y }: Curve): 'rising' | 'falling' | 'steady' {
  const quarter = Math.max(1, Math.floor(y.length / 4));
  if (y.length < 2) {
    return 'steady';
  }
  const [low, high] = spanOf(y);
  const last = mean(y.slice(-quarter));
  const before = mean(y.slice(-2 * quarter, -quarter));
  const change = high > low ? (last - before) / (high - low) : 0;
  return Math.abs(change) < 0.02 ? 'steady' : change > 0 ? 'rising' : 'falling';
}

/** Describes a curve, such as "loss 0.12, falling". */
export function curveText(name: string, curve: Curve, trans: TranslationBundle): string {
  const value = curve.y.at(-1);
  if (value === undefined) {
    return trans.__('%1: nothing yet', name);
  }
  const words = { rising: trans.__('rising'), falling: trans.__('falling'), steady: trans.__('steady') };
  return trans.__('%1 %2, %3', name, formatNumber(value), words[trendOf(curve)]);
}

function tenths(value: number): number {
  return Math.round(value * 10) / 10;
}

function spanOf(y: readonly number[]): [number, number] {
  return [Math.min(...y), Math.max(...y)];
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

interface SparklineProps {
  name: string;
  curve: Curve;
  /** The values at the lower and the upper edge; those of the curve if left out. */
  range?: [number, number];
  trans: TranslationBundle;
}

const [WIDTH, HEIGHT] = [64, 20];

/** A curve in the size of a word. */
export const Sparkline = memo(function Sparkline({ name, curve, range, trans }: SparklineProps): ReactElement | null {
  const path = curvePath(curve, WIDTH, HEIGHT, range);
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
  /** The name of the progress bar, for screen readers. */
  label: string;
  /** 0 to 100; null if the total is unknown. */
  percent: number | null;
  /** Its text, such as "340 of 1000". */
  text: string;
  state: string;
}

/** A progress bar. */
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
