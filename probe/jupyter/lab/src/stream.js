// The frames of a run's panel, by a WebSocket: a browser has few other connections to one server, and JupyterLab needs
// them. To who reads it is an answer as of `fetch`.

import { URLExt } from "@jupyterlab/coreutils";
import { ServerConnection } from "@jupyterlab/services";
import { ask, UNSEEN } from "./server.js";

/**
 * @param {string} run
 * @param {boolean} again
 * @param {AbortSignal} signal
 * @returns {Promise<Response | null>} null where there is no connection
 */
export async function frames(run, again, signal) {
  const path = `stream?run=${encodeURIComponent(run)}&again=${again ? 1 : 0}&${UNSEEN}`;
  const settings = ServerConnection.makeSettings();
  const token = settings.appendToken && settings.token ? `&token=${encodeURIComponent(settings.token)}` : "";
  const url = URLExt.join(settings.wsUrl, "probe/api") + `/${path}${token}`;
  const answer = await answerOf(new settings.WebSocket(url), signal);
  if (answer || signal.aborted) return answer;
  // A browser doesn't say why a WebSocket was refused: the same address, asked for in the plain way, does.
  const plain = await ask(path, { signal });
  return plain.status === 403 ? plain : null;
}

/**
 * The status comes first, as text; then the body, in binary pieces, until the end of the connection.
 * @param {WebSocket} socket
 * @param {AbortSignal} signal lets go of it
 * @returns {Promise<Response | null>} null where it ends before there is a status
 */
export function answerOf(socket, signal) {
  socket.binaryType = "arraybuffer";
  return new Promise((done) => {
    /** @type {ReadableStreamDefaultController<Uint8Array> | null} */
    let body = null;
    // Not only by the socket's own end: that waits for a server which may not answer any more.
    const end = () => {
      signal.removeEventListener("abort", end);
      socket.close();
      body?.close();
      body = null;
      done(null);
    };
    const stream = new ReadableStream({
      start(controller) {
        body = controller;
      },
      cancel() {
        body = null;
        end();
      },
    });
    signal.addEventListener("abort", end);
    socket.addEventListener("close", end);
    socket.addEventListener("message", ({ data }) => {
      if (typeof data === "string") done(new Response(stream, { status: JSON.parse(data).status }));
      else body?.enqueue(new Uint8Array(data));
    });
    if (signal.aborted) end();
  });
}
