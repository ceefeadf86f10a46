// The server's API: JSON, and drawings as gzip of one byte a voxel (x fastest, as the image's file stores them).

/** The server cannot be reached, or was started anew and does not know this page yet: worth trying again. */
export class Offline extends Error {}

/** Another window changed the case in the meantime. */
export class Conflict extends Error {}

const LISTEN_AGAIN_MS = 2000;

async function request(method, path, { json, body, headers = {} } = {}) {
  const options = { method, headers: { ...headers }, credentials: "same-origin", cache: "no-store" };
  if (json !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(json);
  } else if (body !== undefined) {
    options.body = body;
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Offline("The server does not answer. Nothing is lost while this page stays open; it keeps trying.");
  }
  if (response.ok) return response;
  if (response.status === 403) {
    throw new Offline("The server was started anew: open the address it printed, then this page goes on as well.");
  }
  const detail = await response.json().then(
    (content) => (typeof content.detail === "string" ? content.detail : JSON.stringify(content.detail ?? content)),
    () => response.statusText || String(response.status),
  );
  if (response.status === 412) throw new Offline(`Not saved: ${detail}`); // kept until this page and the server agree
  if (response.status >= 500) throw new Offline(`The server failed: ${detail}. This page keeps trying.`);
  const error = response.status === 409 ? new Conflict(detail) : new Error(detail);
  error.status = response.status;
  throw error;
}

/** Wait for an answer's body; one that breaks off midway is worth asking for again. */
async function whole(reading) {
  try {
    return await reading;
  } catch {
    throw new Offline("The server's answer broke off; this page keeps trying.");
  }
}

const json = async (method, path, content) => whole((await request(method, path, { json: content })).json());
const path = (name, rest = "") => `/api/cases/${encodeURIComponent(name)}${rest}`;

export const getDataset = () => json("GET", "/api/dataset");
export const getCase = (name) => json("GET", path(name));
export const imageUrl = (name, file) => path(name, `/image/${encodeURIComponent(file)}`);
export const putShown = (name) => request("POST", "/api/shown", { json: { case: name } });

export const putClick = (name, label, voxel, revision) => json("PUT", path(name, "/click"), { label, voxel, revision });
export const deleteClick = (name, label, revision) =>
  json("DELETE", path(name, `/click?${new URLSearchParams({ label, revision })}`));
export const putBounds = (name, bounds, revision) =>
  json("PUT", path(name, "/bounds"), { bounds_ml: bounds, revision });
export const putState = (name, state, revision) => json("PUT", path(name, "/state"), { state, revision });

/** Return the drawing and the revision that it belongs to. */
export async function getLabels(name) {
  const response = await request("GET", path(name, "/labels"));
  return { labels: await gunzip(response), revision: Number(response.headers.get("X-Revision")) };
}

/** Save a drawing whose numbers 1…K stand for `values` of the dataset: a server that counts otherwise refuses it. */
export async function putLabels(name, labels, revision, values) {
  const body = await gzip(labels);
  const headers = {
    "Content-Type": "application/octet-stream",
    "X-Revision": String(revision),
    "X-Structures": values.join(","),
  };
  return whole((await request("PUT", path(name, "/labels"), { body, headers })).json());
}

/** Return what a run says about a case, as a drawing, or null where it says nothing. kind: prediction, crf or size. */
export async function getOverlay(run, name, kind) {
  const url = `/api/runs/${encodeURIComponent(run)}/cases/${encodeURIComponent(name)}/${kind}`;
  try {
    return await gunzip(await request("GET", url));
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

export const getTraining = () => json("GET", "/api/training");
export const startTraining = (settings) => json("POST", "/api/training", settings);
export const stopTraining = () => json("DELETE", "/api/training");

/**
 * Listen to what other windows and trainings do, while the page can be seen: a browser opens six connections to a server
 * at most, and hidden tabs would hold them. `onOpen` runs at every (re)connection, `onLost` where one breaks.
 */
export function listen({ onEvent, onOpen, onLost }) {
  let source = null;
  const connect = () => {
    source = new EventSource("/api/events");
    source.onmessage = (message) => onEvent(JSON.parse(message.data));
    source.onopen = onOpen;
    source.onerror = () => {
      onLost();
      if (source?.readyState === EventSource.CLOSED) setTimeout(connect, LISTEN_AGAIN_MS);
    };
  };
  document.addEventListener("visibilitychange", () => {
    source?.close();
    source = null;
    if (!document.hidden) connect();
  });
  connect();
}

async function gunzip(response) {
  const stream = response.body.pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await whole(new Response(stream).arrayBuffer()));
}

/** Compress a drawing piece by piece, so that no copy of it is made. */
function gzip(labels) {
  const piece = 1 << 20;
  let start = 0;
  const pieces = new ReadableStream({
    pull(controller) {
      if (start >= labels.length) return controller.close();
      controller.enqueue(labels.slice(start, (start += piece)));
    },
  });
  return new Response(pieces.pipeThrough(new CompressionStream("gzip"))).blob();
}
