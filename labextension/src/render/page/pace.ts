/** Does something when it is wanted: never twice at once, and never sooner than `every` milliseconds after the last time. */
export class Pace {
  constructor(
    private readonly act: () => Promise<void>,
    private readonly every: number
  ) {}

  /** Have it done now, or as soon as it may be. */
  want(): void {
    this.wanted = true;
    if (!this.busy && !this.timer && !this.over) {
      this.timer = setTimeout(() => void this.go(), Math.max(0, this.due - Date.now()));
    }
  }

  dispose(): void {
    this.over = true;
    clearTimeout(this.timer);
  }

  private async go(): Promise<void> {
    this.timer = undefined;
    this.wanted = false;
    this.busy = true;
    this.due = Date.now() + this.every;
    try {
      await this.act();
    } finally {
      this.busy = false;
      if (this.wanted) {
        this.want();
      }
    }
  }

  private timer: ReturnType<typeof setTimeout> | undefined;
  private due = 0;
  private wanted = false;
  private busy = false;
  private over = false;
}
