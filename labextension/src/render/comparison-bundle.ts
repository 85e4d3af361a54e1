/** Reads `application/vnd.nbdist.comparison+json` (see nbdist/ui/compare/saved.py) for the drawing code. */

import type { By, Comparison, Row } from '@widget/compare/view.js';
import { checkVersion, isRecord, list, record, text, whole } from './json';
import { planOf, pointsOf } from './run-bundle';

export interface ComparisonBundle extends Comparison {
  /** The number of curves left out of the data. */
  leftOut: number;
}

const MOST_RUNS = 8;
const MOST_CHARTS = 64;
const MOST_CURVES = 1024;
const MOST_ROWS = 256;
const AXES: readonly By[] = ['step', 'epoch', 'time'];

/** Raises `Unreadable` if the data cannot be drawn; damaged parts are left out. */
export function readComparison(data: unknown): ComparisonBundle {
  const found = checkVersion(data);
  const runs = list(found['runs'], MOST_RUNS).map(one => {
    const run = record(one);
    return { id: text(run['id']), name: text(run['name']) || text(run['id']), status: text(run['status']) };
  });
  const placeOf = (value: unknown): number[] => {
    const place = whole(value);
    return place !== null && place < runs.length ? [place] : [];
  };
  const names = new Map<string, number>();
  const numberOf = (name: string): number => {
    const known = names.get(name) ?? names.size;
    names.set(name, known);
    return known;
  };
  const charts = list(found['charts'], MOST_CHARTS).flatMap(chart => planOf(chart, numberOf));
  const curves = list(found['series'], MOST_CURVES).flatMap(one => {
    const curve = record(one);
    const series = names.get(text(curve['name']));
    const points = pointsOf(curve);
    return series === undefined || !points.steps.length ? [] : placeOf(curve['run']).map(replica => ({ replica, series, ...points }));
  });
  const axes = list(found['axes'], MOST_RUNS * AXES.length).flatMap(one => {
    const axis = record(one);
    const by = axisOf(axis['by']);
    const points = pointsOf(axis);
    const ascends = points.values.length > 1 && points.values.every((value, i) => Number.isFinite(value) && value >= (points.values[i - 1] ?? -Infinity));
    return by && by !== 'step' && ascends ? placeOf(axis['run']).map(run => ({ run, by, ...points })) : [];
  });
  const rowsOf = (key: string): Row[] =>
    list(found[key], MOST_ROWS).filter(isRecord).map(row => ({
      name: text(row['name']),
      texts: list(row['texts'], MOST_RUNS).map(text),
      best: list(row['best'], MOST_RUNS).flatMap(placeOf)
    }));
  return {
    by: axisOf(found['by']) ?? 'step',
    runs,
    charts,
    curves,
    axes,
    differences: rowsOf('differences'),
    metrics: rowsOf('metrics'),
    leftOut: whole(found['left_out']) ?? 0
  };
}

function axisOf(value: unknown): By | undefined {
  return AXES.find(by => by === value);
}
