/** Short formats of numbers for the panel, which is often 250 px wide. */

/** A count or a loss, to four digits: 0.1234, 12.3, 1.2e-7. */
export function formatNumber(value: number): string {
  if (!Number.isFinite(value)) {
    return Number.isNaN(value) ? 'NaN' : value > 0 ? '∞' : '−∞';
  }
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-4 || size >= (Number.isInteger(value) ? 1e9 : 1e7))) {
    return value.toExponential(2).replace(/\.?0+e/, 'e').replace('e+', 'e').replaceAll('-', '−');
  }
  const text = Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
  return text.replace('-', '−');
}

/** A count, with separators between thousands: "12,500". */
export function formatCount(value: number): string {
  return Number.isInteger(value) && Math.abs(value) < 1e9 ? value.toLocaleString('en').replace('-', '−') : formatNumber(value);
}

/** Steps per second, to two or three digits. */
export function formatRate(value: number): string {
  return value >= 100 ? formatCount(Math.round(value)) : String(Number(value.toPrecision(2)));
}

/** Memory in the unit with the shortest text; 1 GB is 1024 MB, as for GPUs. */
export function formatBytes(bytes: number): string {
  const units = ['B', 'KB', 'MB', 'GB', 'TB'];
  let value = bytes;
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit > 0 && value < 10 ? Number(value.toFixed(1)) : Math.round(value)} ${units[unit]}`;
}

/** Seconds in at most two units: "8 s", "3 min", "2 h 5 min", "4 d". */
export function formatSeconds(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 90) {
    return `${whole} s`;
  }
  const minutes = Math.round(whole / 60);
  if (minutes < 90) {
    return `${minutes} min`;
  }
  const hours = Math.floor(minutes / 60);
  if (hours < 48) {
    return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  }
  return `${Math.round(hours / 24)} d`;
}

/** Whole percent of a share, 0 to 100. */
export function formatShare(done: number, total: number): string {
  return `${percentOf(done, total)}%`;
}

/** The share of `done` in `total`, in percent; 100 only if everything is done. */
export function percentOf(done: number, total: number): number {
  return total > 0 ? Math.min(100, Math.max(0, Math.floor((100 * done) / total))) : 0;
}

/** A time in the user's locale: the time of day if it is today, the date otherwise. */
export function formatMoment(seconds: number, now: number = Date.now() / 1000): string {
  const [then, today] = [new Date(seconds * 1000), new Date(now * 1000)];
  if (then.toDateString() === today.toDateString()) {
    return then.toLocaleTimeString(undefined, { hour: '2-digit', minute: '2-digit' });
  }
  const year = then.getFullYear() === today.getFullYear() ? undefined : 'numeric';
  return then.toLocaleDateString(undefined, { day: 'numeric', month: 'short', year });
}

/** The last part of a path, which names a notebook. */
export function lastPart(path: string): string {
  return path.split('/').pop() ?? path;
}
