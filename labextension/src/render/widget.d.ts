/** The used part of the live view's drawing code; the types of all of it are in its comments. */

declare module '@widget/text/ansi.js' {
  export function coloured(text: string): Node[];
}

declare module '@widget/dom/elements.js' {
  export function make<Tag extends keyof HTMLElementTagNameMap>(
    tag: Tag,
    attributes?: Record<string, string>,
    ...children: (Node | string)[]
  ): HTMLElementTagNameMap[Tag];
  export function setText(node: Node, text: string): void;
}

declare module '@widget/text/format.js' {
  export function formatValue(value: number | null | undefined): string;
  export function formatCount(value: number | null | undefined): string;
  export function formatDuration(seconds: number | null | undefined): string;
  export function shortTask(task: string): string;
}

declare module '@widget/comm/frames.js' {
  /** In place of a replica: the mean over all replicas. */
  export const MEAN: number;
  /** In place of a series: the values are seconds since the first step. */
  export const CLOCK: number;
  /** In place of a series: the values are the numbers of the epochs that begin after the steps. */
  export const EPOCHS: number;
  /** Added to a series: the values are means of neighbouring points. */
  export const TREND: number;
  /** Consecutive points of one curve. */
  export interface CurveSegment {
    replica: number;
    series: number;
    steps: number[];
    values: number[];
  }
}

declare module '@widget/chart/annotations.js' {
  /** An event of a run, a command or a fault, at a step of its curves. */
  export interface Annotation {
    step: number;
    kind: string;
    text: string;
    epoch?: number | null;
    /** In seconds since 1970. */
    time?: number | null;
  }
}

declare module '@widget/run/view.js' {
  import type { CurveSegment } from '@widget/comm/frames.js';
  import type { Annotation } from '@widget/chart/annotations.js';

  export interface ChartSpec {
    title: string;
    train: number | null;
    validation: number | null;
  }
  export interface Head {
    title: string;
    run: string;
    tasks: string[];
    total: number | null;
    controls?: string[];
    charts: ChartSpec[];
    series: string[];
  }
  export interface Progress {
    state: string;
    step: number | null;
    epoch?: number | null;
    total?: number | null;
    unit: string;
    /** Without the start and pauses, of a run that is over. */
    training_seconds?: number | null;
    elapsed: number | null;
    steps_per_second: number | null;
    seconds_left?: number | null;
    checkpoint?: { step: number | null; path: string } | null;
    note: string;
    /** The devices that held the replicas' arrays, in one line. */
    trained_on?: string;
    warning?: string;
    /** The dataset's slow stage; the drawing code checks it. */
    input?: unknown;
    per_replica: Record<number, { state: string }>;
  }
  /** `count` charts, of which some `titles` are listed and at most `most` are drawn. */
  export interface AvailableCharts {
    titles: string[];
    count: number;
    most: number;
  }
  export interface Message {
    kind: 'frame';
    snapshot: boolean;
    head: Head;
    progress: Progress;
    available?: AvailableCharts;
    marks?: Annotation[];
    gpus?: unknown;
    pictures?: unknown;
    replaced: [number, number][];
  }
  /** The whole view of a run. */
  export class RunView {
    constructor(name: string, send: (kind: string, more?: Record<string, unknown>) => void);
    readonly element: HTMLElement;
    readonly toolbar: { readonly time: HTMLElement };
    readonly shared: { readonly zoomed: [number, number] | null };
    apply(message: Message, segments: CurveSegment[]): void;
    redraw(): void;
    draw(): void;
    close(): void;
  }
}

declare module '@widget/sweep/view.js' {
  /** The whole page of a sweep; `send` is null where no kernel receives commands. */
  export class SweepView {
    constructor(name: string, send: ((kind: string, more?: Record<string, unknown>) => void) | null);
    connect(send: ((kind: string, more?: Record<string, unknown>) => void) | null): void;
    readonly commands: { receive(answer: Record<string, unknown>): void };
    readonly element: HTMLElement;
    readonly model: {
      readonly chosen: number;
      readonly count: number;
      apply(content: object, buffers?: DataView[]): void;
    };
    redraw(): void;
    draw(): void;
    destroy(): void;
  }
}

declare module '@widget/compare/view.js' {
  import type { CurveSegment } from '@widget/comm/frames.js';
  import type { ChartSpec } from '@widget/run/view.js';

  export type By = 'step' | 'epoch' | 'time';
  /** A text for each run, and the places of the runs with the best value. */
  export interface Row {
    name: string;
    texts: string[];
    best: number[];
  }
  /** Runs beside each other; the `replica` of a curve is the place of its run. */
  export interface Comparison {
    by: By;
    runs: { id: string; name: string; status: string }[];
    charts: ChartSpec[];
    curves: CurveSegment[];
    axes: { run: number; by: By; steps: number[]; values: number[] }[];
    differences: Row[];
    metrics: Row[];
  }
  /** The view of several runs. */
  export class CompareView {
    constructor(name: string);
    readonly element: HTMLElement;
    apply(data: Comparison): void;
    redraw(): void;
    draw(): void;
    close(): void;
  }
}
