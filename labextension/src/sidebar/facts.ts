import type { TranslationBundle } from '@jupyterlab/translation';
import { type Cluster, DEFAULT_LAUNCHER, type Host, type Run, type Sweep } from '../api/items';
import { isActive } from './actions';
import { formatBytes, formatCount, formatMoment, formatNumber, formatRate, formatSeconds, lastPart } from './format';

/** The facts on a cluster, such as its tasks and its owner, one short text each. */
export function clusterFacts(cluster: Cluster, trans: TranslationBundle): string[] {
  const facts: string[] = [];
  if (cluster.workers || (cluster.workers === 0 && cluster.ps)) {
    facts.push(trans._n('%1 worker', '%1 workers', cluster.workers));
  } else if (cluster.workers === null && cluster.engines !== null) {
    facts.push(trans._n('%1 engine', '%1 engines', cluster.engines));
  }
  if (cluster.ps) {
    facts.push(trans.__('%1 ps', String(cluster.ps)));
  }
  if (cluster.launcher && cluster.launcher !== DEFAULT_LAUNCHER) {
    facts.push(cluster.launcher);
  }
  if (cluster.hosts.length) {
    facts.push(trans._n('%1 host', '%1 hosts', cluster.hosts.length));
  }
  if (cluster.ends !== null) {
    facts.push(trans.__('job ends %1', formatMoment(cluster.ends)));
  }
  if (typeof cluster.unused_ends === 'number') {
    facts.push(trans.__('unused, it ends %1', formatMoment(cluster.unused_ends)));
  }
  if (cluster.owner?.session) {
    const notebook = lastPart(cluster.owner.session);
    facts.push(cluster.owner.alive ? notebook : trans.__('%1 (ended)', notebook));
  } else if (cluster.detached) {
    facts.push(trans.__('runs until stopped'));
  }
  return facts;
}

const MOST_HOSTS = 8;

/** The hosts of a cluster that are there, in one line: "a, b"; empty for a cluster on the server's host. */
export function hostNames(hosts: readonly Host[], trans: TranslationBundle): string {
  const names = hosts.map(host => host.name);
  const more = names.length - MOST_HOSTS;
  return more > 0 ? trans.__('%1 and %2 more', names.slice(0, MOST_HOSTS).join(', '), String(more)) : names.join(', ');
}

/** What is known of a host, one short text each: its state if it is not there, its cores and GPUs. */
export function hostFacts(host: Host, trans: TranslationBundle): string[] {
  if (host.state !== 'up') {
    return [host.state === 'lost' ? trans.__('lost') : trans.__('not there')];
  }
  const facts = host.cores === null ? [] : [trans._n('%1 core', '%1 cores', host.cores)];
  return host.gpus ? [...facts, trans._n('%1 GPU', '%1 GPUs', host.gpus)] : facts;
}

/** What a host uses: the caption and the text of each figure that is known. */
export function hostFigures({ machine }: Host, trans: TranslationBundle): [string, string][] {
  const memory = machine ? memoryText(machine) : null;
  const figures: [string, string | null][] = [
    [trans.__('Percent of all its cores'), machine?.cpu == null ? null : trans.__('CPU %1', `${machine.cpu}%`)],
    [trans.__('Memory in use, and all of it'), memory === null ? null : trans.__('Memory %1', memory)]
  ];
  return figures.filter((figure): figure is [string, string] => figure[1] !== null);
}

/** "1 GB / 8 GB": the memory in use and all of it; null if it is not known. */
export function memoryText({ memory, total }: { memory: number | null; total: number | null }): string | null {
  const known = memory === null ? [] : [memory, total].filter(bytes => bytes !== null);
  return known.length ? known.map(formatBytes).join(' / ') : null;
}

/** The progress and speed of a run: "340 of 1000", "56/s", "2 min left". */
export function runFacts(run: Run, trans: TranslationBundle): string[] {
  const facts: string[] = [];
  if (run.step !== null) {
    const step = formatCount(run.step);
    facts.push(run.total ? trans.__('%1 of %2', step, formatCount(run.total)) : trans.__('step %1', step));
  }
  if (run.metric !== null && run.value !== null) {
    facts.push(`${run.metric} ${formatNumber(run.value)}`);
  }
  if (isActive(run)) {
    if (run.steps_per_second !== null) {
      facts.push(trans.__('%1 steps/s', formatRate(run.steps_per_second)));
    }
    if (run.seconds_left !== null) {
      facts.push(trans.__('%1 left', formatSeconds(run.seconds_left)));
    }
  } else {
    facts.push(formatMoment(run.ended ?? run.created));
    if (run.bytes !== null && run.bytes >= 1e6) {
      facts.push(formatBytes(run.bytes));
    }
  }
  return facts;
}

/** The number of a sweep's trials in each state; zero counts are left out. */
export function trialFacts(sweep: Sweep, trans: TranslationBundle): string[] {
  const { finished, running, pruned, failed, stopped, waiting } = sweep.counts;
  const facts: [number, string][] = [
    [running, trans.__('%1 running', formatCount(running))],
    [finished, trans.__('%1 finished', formatCount(finished))],
    [pruned, trans.__('%1 pruned', formatCount(pruned))],
    [failed, trans.__('%1 failed', formatCount(failed))],
    [stopped, trans.__('%1 stopped', formatCount(stopped))],
    [waiting, trans.__('%1 waiting', formatCount(waiting))]
  ];
  return facts.filter(([count]) => count > 0).map(([, text]) => text);
}

/** The number of ended trials of a sweep. */
export function trialsEnded({ counts }: Sweep): number {
  return counts.finished + counts.pruned + counts.stopped + counts.failed;
}

/** "lr 0.01, units 64". */
export function parameterText(parameters: Record<string, unknown>): string {
  return Object.entries(parameters)
    .map(([name, value]) => `${name} ${typeof value === 'number' ? formatNumber(value) : String(value)}`)
    .join(', ');
}
