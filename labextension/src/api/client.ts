import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import type { About, CleanResult, CleanRequest, Labels, RunDetails, SavedOutput, StartRequest, State, Sweep } from './items';

const ROOT = 'nbdist/api/v1';

/** The server has refused a request, or cannot be reached (status 0). */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string
  ) {
    super(message);
    this.name = 'ApiError';
  }
}

/** The client of nbdist's server extension, one method for each route. Every method raises `ApiError`. */
export class Client {
  constructor(readonly settings: ServerConnection.ISettings = ServerConnection.makeSettings()) {}

  about(): Promise<About> {
    return this.request('GET', '');
  }

  state(cluster: string | null): Promise<State> {
    return this.request('GET', cluster === null ? 'state' : `state?cluster=${encodeURIComponent(cluster)}`);
  }

  startCluster(start: Partial<StartRequest>): Promise<{ id: string }> {
    return this.request('POST', 'clusters', start);
  }

  stopCluster(id: string): Promise<void> {
    return this.request('DELETE', `clusters/${encodeURIComponent(id)}`);
  }

  grow(id: string, workers: number): Promise<void> {
    return this.request('POST', `clusters/${encodeURIComponent(id)}/grow`, { workers });
  }

  /** Remove the last workers. */
  shrink(id: string, workers: number): Promise<void> {
    return this.request('POST', `clusters/${encodeURIComponent(id)}/shrink`, { workers });
  }

  /** Restart a task in a new process; null means all dead tasks. */
  restart(id: string, task: string | null): Promise<void> {
    return this.request('POST', `clusters/${encodeURIComponent(id)}/restart`, { task });
  }

  run(id: string): Promise<RunDetails> {
    return this.request('GET', `runs/${encodeURIComponent(id)}`);
  }

  /** `application/vnd.nbdist.run+json` of a run, with the charts of these titles, or with the default ones. */
  runData(id: string, charts: string[] = []): Promise<Record<string, unknown>> {
    const query = charts.map(title => `chart=${encodeURIComponent(title)}`).join('&');
    return this.request('GET', `runs/${encodeURIComponent(id)}/data${query && '?'}${query}`);
  }

  /** The output of a run as a notebook saves it. */
  runOutput(id: string): Promise<SavedOutput> {
    return this.request('GET', `runs/${encodeURIComponent(id)}/output`);
  }

  stopRun(id: string): Promise<void> {
    return this.request('POST', `runs/${encodeURIComponent(id)}/stop`, {});
  }

  controlRun(id: string, command: 'pause' | 'resume'): Promise<void> {
    return this.request('POST', `runs/${encodeURIComponent(id)}/${command}`, {});
  }

  setLearningRate(id: string, rate: number): Promise<void> {
    return this.request('POST', `runs/${encodeURIComponent(id)}/set`, { learning_rate: rate });
  }

  /** Change the name, the tags or the note of a run. */
  labelRun(id: string, labels: Labels): Promise<void> {
    return this.request('POST', `runs/${encodeURIComponent(id)}/labels`, labels);
  }

  /** Delete a run with all its files. */
  deleteRun(id: string): Promise<{ bytes: number }> {
    return this.request('DELETE', `runs/${encodeURIComponent(id)}`);
  }

  /** Delete old runs, or list the runs to delete. */
  clean(cleaning: CleanRequest): Promise<CleanResult> {
    return this.request('POST', 'clean', cleaning);
  }

  /** The address of TensorBoard for a run, as this browser can open it. */
  async openTensorBoard(id: string): Promise<string> {
    const { url } = await this.request<{ url: string }>('POST', `runs/${encodeURIComponent(id)}/tensorboard`, {});
    return this.address(url);
  }

  sweep(id: string): Promise<Sweep> {
    return this.request('GET', `sweeps/${encodeURIComponent(id)}`);
  }

  /** `application/vnd.nbdist.sweep+json` of a sweep. */
  sweepData(id: string): Promise<Record<string, unknown>> {
    return this.request('GET', `sweeps/${encodeURIComponent(id)}/data`);
  }

  /** The output of a sweep as a notebook saves it. */
  sweepOutput(id: string): Promise<SavedOutput> {
    return this.request('GET', `sweeps/${encodeURIComponent(id)}/output`);
  }

  controlSweep(id: string, command: 'stop' | 'pause' | 'resume'): Promise<void> {
    return this.request('POST', `sweeps/${encodeURIComponent(id)}/${command}`, {});
  }

  /** The download address of a file in a run's folder. */
  fileUrl(id: string, path: string): string {
    const parts = path.split('/').map(encodeURIComponent).join('/');
    return this.address(`${ROOT}/runs/${encodeURIComponent(id)}/files/${parts}`);
  }

  /** The content of a JSON file in a run's folder. */
  runFile(id: string, path: string): Promise<unknown> {
    const parts = path.split('/').map(encodeURIComponent).join('/');
    return this.request('GET', `runs/${encodeURIComponent(id)}/files/${parts}`);
  }

  /** The address of the stream of changes. */
  streamUrl(): string {
    const { wsUrl, token, appendToken } = this.settings;
    const address = URLExt.join(wsUrl, ROOT, 'stream');
    return appendToken && token ? `${address}?token=${encodeURIComponent(token)}` : address;
  }

  private address(path: string): string {
    const { baseUrl, token, appendToken } = this.settings;
    const address = URLExt.join(baseUrl, path);
    return appendToken && token ? `${address}?token=${encodeURIComponent(token)}` : address;
  }

  private async request<Answer>(method: string, path: string, body?: unknown): Promise<Answer> {
    const init: RequestInit = { method, cache: 'no-store' };
    if (body !== undefined) {
      init.body = JSON.stringify(body);
    }
    let response: Response;
    let text: string;
    try {
      response = await ServerConnection.makeRequest(
        URLExt.join(this.settings.baseUrl, ROOT, path),
        init,
        this.settings
      );
      text = await response.text();
    } catch (error) {
      console.warn('nbdist:', error); // the browser hides the cause
      throw new ApiError(0, 'The Jupyter server cannot be reached. Try again when it is back.');
    }
    const answer = parsed(text);
    if (!response.ok) {
      throw new ApiError(response.status, messageOf(answer) ?? `${response.status} ${response.statusText}`);
    }
    return answer as Answer;
  }
}

function parsed(text: string): unknown {
  try {
    return text ? JSON.parse(text) : undefined;
  } catch {
    return undefined; // for example a proxy's error page; its status is used
  }
}

function messageOf(answer: unknown): string | undefined {
  const message = (answer as { message?: unknown } | undefined)?.message;
  return typeof message === 'string' && message ? message : undefined;
}
