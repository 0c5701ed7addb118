// Server-sent events read with fetch: EventSource cannot send an Authorization header.

import { call, ApiError } from "./api.js";

const SILENCE_MS = 25000;  // the service sends at least a comment every 10 s

/** Parses an event stream that arrives in pieces; `onEvent(name, data)` for each complete event. */
export function eventParser(onEvent) {
  let rest = "", name = "message", data = [];
  return (piece) => {
    const lines = (rest + piece).split(/\r\n|\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (data.length) onEvent(name, data.join("\n"));
        name = "message";
        data = [];
      } else if (line.startsWith("event:")) name = line.slice(6).trim();
      else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
    }
  };
}

/** Follows `path` for as long as the page lives. `onState` gets connecting | live | lost; a refused key ends it. */
export async function follow(path, { onEvent, onState, onRefused }) {
  let attempt = 0;
  for (;;) {
    const abort = new AbortController();
    let watchdog = 0;
    const heard = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => abort.abort(), SILENCE_MS);
    };
    onState(attempt === 0 ? "connecting" : "lost");
    try {
      heard();
      const response = await call(path, { signal: abort.signal });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      const parse = eventParser((name, data) => onEvent(name, JSON.parse(data)));
      onState("live");
      attempt = 0;
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        heard();
        parse(value);
      }
    } catch (error) {
      if (error instanceof ApiError && (error.status === 401 || error.status === 403)) {
        onState("lost");
        onRefused(error);
        return;
      }
      if (!(error instanceof TypeError || error instanceof ApiError || error.name === "AbortError")) throw error;
    } finally {
      clearTimeout(watchdog);
    }
    onState("lost");
    attempt += 1;
    await new Promise((done) => setTimeout(done, Math.min(10000, 500 * 2 ** Math.min(attempt, 5)) * (0.75 + Math.random() / 2)));
  }
}
