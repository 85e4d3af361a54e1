/** What the live view's drawing code offers, as far as it is used here; its own types stand in its comments. */

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
  /** Stands where a replica does: the mean of all of them. */
  export const MEAN: number;
  /** Added to a series: not its points, but the means of neighbouring points. */
  export const TREND: number;
  /** Consecutive points of one curve. */
  export interface Run {
    replica: number;
    series: number;
    steps: number[];
    values: number[];
  }
}

declare module '@widget/chart/annotations.js' {
  /** An event of a run, by steering or a fault, at a step of its curves. */
  export interface Mark {
    step: number;
    kind: string;
    text: string;
  }
}

declare module '@widget/run/view.js' {
  import type { Run } from '@widget/comm/frames.js';
  import type { Mark } from '@widget/chart/annotations.js';

  export interface Plan {
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
    charts: Plan[];
    series: string[];
  }
  export interface Progress {
    state: string;
    step: number | null;
    total?: number | null;
    unit: string;
    elapsed: number | null;
    steps_per_second: number | null;
    seconds_left?: number | null;
    checkpoint?: { step: number | null; path: string } | null;
    note: string;
    per_replica: Record<number, { state: string }>;
  }
  export interface Message {
    kind: 'frame';
    snapshot: boolean;
    head: Head;
    progress: Progress;
    marks?: Mark[];
    replaced: [number, number][];
  }
  /** The whole view of a run. */
  export class View {
    constructor(name: string, say: (kind: string, more?: Record<string, unknown>) => void);
    readonly element: HTMLElement;
    readonly controls: { readonly time: HTMLElement };
    readonly shared: { readonly zoomed: [number, number] | null };
    apply(message: Message, runs: Run[]): void;
    redraw(): void;
    draw(): void;
    close(): void;
  }
}

declare module '@widget/sweep/view.js' {
  /** The whole page of a sweep; `say` is null where nobody hears wishes. */
  export class Grid {
    constructor(name: string, say: ((kind: string, more?: Record<string, unknown>) => void) | null);
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
