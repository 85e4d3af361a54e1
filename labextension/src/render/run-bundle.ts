/** Reads `application/vnd.nbdist.run+json` (see nbdist/ui/frozen/run.py) for the live view's drawing code. */

import { CLOCK, type CurveSegment, EPOCHS, MEAN, TREND } from '@widget/comm/frames.js';
import type { Annotation } from '@widget/chart/annotations.js';
import type { AvailableCharts, ChartSpec, Head, Progress } from '@widget/run/view.js';
import { finite, isRecord, type Json, list, record, text, texts, checkVersion, whole } from './json';

export interface RunBundle {
  head: Head;
  progress: Progress;
  curves: CurveSegment[];
  /** Final values by name. */
  metrics: [string, number][];
  marks: Annotation[];
  /** The GPUs of the replicas over time; the drawing code checks them. */
  gpus: unknown;
  /** The histograms and images of its summaries; the drawing code checks them. */
  pictures: unknown;
  /** The charts to choose from; not in a notebook, which has the drawn ones only. */
  available: AvailableCharts | undefined;
  /** The number of curves left out of the data. */
  leftOut: number;
}

const MOST_TASKS = 1024;
const MOST_CHARTS = 64;
const MOST_CURVES = 4096;
const MOST_POINTS = 100_000; // of a curve
const MOST_METRICS = 256;
const MOST_TITLES = 1024;
const MOST_MARKS = 256;
const LAST_REPLICA = MEAN - 1;

/** Raises `Unreadable` if the data cannot be drawn; damaged parts are left out. */
export function readRun(data: unknown): RunBundle {
  const run = checkVersion(data);
  const names = new Map<string, number>();
  const numberOf = (name: string): number => {
    const known = names.get(name) ?? names.size;
    names.set(name, known);
    return known;
  };
  const charts = list(run['charts'], MOST_CHARTS).flatMap(chart => planOf(chart, numberOf));
  const curves = list(run['series'], MOST_CURVES).flatMap(series => curveOf(series, names));
  const tasks = texts(run['tasks'], MOST_TASKS);
  const replicas = list(run['replicas'], MOST_TASKS).map(record);
  const clock = pointsOf(record(run['clock']));
  const epochs = pointsOf(record(run['epochs']));
  const shown = new Set(curves.filter(({ series }) => series >= TREND).map(({ replica }) => replica));
  return {
    head: { title: text(run['title']), run: text(run['run']), tasks, total: whole(run['total']), charts, series: [...names.keys()] },
    progress: {
      state: text(run['state']) || 'unknown',
      step: whole(run['step']),
      epoch: whole(run['epoch']),
      unit: text(run['unit']) || 'steps',
      training_seconds: finite(run['seconds']),
      elapsed: finite(run['elapsed']),
      steps_per_second: finite(run['steps_per_second']),
      checkpoint: text(run['checkpoint']) ? { step: null, path: text(run['checkpoint']) } : null,
      note: texts(run['remarks'], MOST_TASKS).join(' · '),
      trained_on: text(run['trained_on']),
      warning: text(run['warning']),
      input: run['input'] ?? null,
      per_replica: Object.fromEntries([...shown].map(replica => [replica, cardOf(replicas[replica])]))
    },
    curves: [...curves, ...trendStandIns(curves), ...standing(CLOCK, clock), ...standing(EPOCHS, epochs)],
    marks: list(run['marks'], MOST_MARKS).flatMap(markOf),
    gpus: run['gpus'] ?? [],
    pictures: run['pictures'] ?? [],
    metrics: Object.entries(record(run['metrics']))
      .slice(0, MOST_METRICS)
      .flatMap(([name, value]) => (typeof value === 'number' || typeof value === 'string' ? [[name, parseNumber(value)]] : [])),
    available: isRecord(run['available']) ? availableOf(run['available']) : undefined,
    leftOut: whole(run['left_out']) ?? 0
  };
}

/** What the card of a replica shows: its state, its step, and its host where a run was on several. */
function cardOf(replica: Json | undefined): { state: string; step: number | null; host: string | null } {
  return { state: text(replica?.['state']), step: whole(replica?.['step']), host: text(replica?.['host']) || null };
}

function availableOf(value: Json): AvailableCharts {
  const titles = texts(value['titles'], MOST_TITLES);
  return { titles, count: whole(value['count']) ?? titles.length, most: Math.min(whole(value['most']) ?? 0, MOST_CHARTS) };
}

export function planOf(value: unknown, numberOf: (name: string) => number): ChartSpec[] {
  const chart = record(value);
  const series = (key: string): number | null => {
    const name = chart[key];
    return typeof name === 'string' ? numberOf(name) : null;
  };
  const [train, validation] = [series('train'), series('validation')];
  return train === null && validation === null ? [] : [{ title: text(chart['title']), train, validation }];
}

function markOf(value: unknown): Annotation[] {
  const mark = record(value);
  const step = whole(mark['step']);
  return step === null ? [] : [{ step, kind: text(mark['kind']), text: text(mark['text']), epoch: whole(mark['epoch']), time: finite(mark['time']) }];
}

/** What the page holds beside the curves, if there is any. */
function standing(series: number, points: { steps: number[]; values: number[] }): CurveSegment[] {
  return points.steps.length ? [{ replica: MEAN, series, ...points }] : [];
}

/** A curve of a series that has a chart. */
function curveOf(value: unknown, names: Map<string, number>): CurveSegment[] {
  if (!isRecord(value)) {
    return [];
  }
  const series = names.get(text(value['name']));
  const replica = value['replica'] === 'mean' ? MEAN : whole(value['replica']);
  if (series === undefined || replica === null || (replica > LAST_REPLICA && replica !== MEAN)) {
    return [];
  }
  const trend = value['kind'] === 'trend' && replica !== MEAN;
  const points = pointsOf(value);
  return points.steps.length ? [{ replica, series: trend ? series | TREND : series, ...points }] : [];
}

/** Points with ascending steps; entries that are not pairs of numbers are dropped. */
export function pointsOf(curve: Json): { steps: number[]; values: number[] } {
  const steps: number[] = [];
  const values: number[] = [];
  const parts = tokens(curve['values']);
  tokens(curve['steps']).forEach((one, i) => {
    const [step, value] = [Number(one), parts[i]];
    if (value !== undefined && Number.isFinite(step) && step > (steps.at(-1) ?? -Infinity)) {
      steps.push(step);
      values.push(parseNumber(value));
    }
  });
  return { steps, values };
}

const NON_FINITE = new Map([['nan', NaN], ['inf', Infinity], ['-inf', -Infinity]]);

/** A number, or the text of one that JSON lacks; NaN for all other values. */
function parseNumber(value: unknown): number {
  return typeof value === 'number' ? value : typeof value === 'string' ? (NON_FINITE.get(value) ?? Number(value || NaN)) : NaN;
}

/** Splits a text at spaces; a list is returned unchanged. */
function tokens(value: unknown): unknown[] {
  return typeof value === 'string' ? value.split(' ', MOST_POINTS).filter(Boolean) : list(value, MOST_POINTS);
}

/** Uses the trend of a replica in place of points that were left out: the drawing code reads points first. */
function trendStandIns(curves: CurveSegment[]): CurveSegment[] {
  const key = ({ replica, series }: CurveSegment): string => `${replica} ${series}`;
  const there = new Set(curves.map(key));
  return curves
    .filter(({ series }) => series >= TREND)
    .map(trend => ({ ...trend, series: trend.series - TREND }))
    .filter(points => !there.has(key(points)));
}
