// Calls to the service. The admin key, where one is configured, lives in sessionStorage only: gone with the tab.

const KEY = "online-rl-admin-key";

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

export function forgetKey() {
  sessionStorage.removeItem(KEY);
}

export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

function headers() {
  const key = sessionStorage.getItem(KEY);
  return key ? { authorization: `Bearer ${key}` } : {};
}

/** The response of `path`; raises ApiError with the service's own message when it is not a success. */
export async function call(path, { method = "GET", body = null, signal = null, extra = {} } = {}) {
  const response = await fetch(path, {
    method, signal, cache: "no-store",
    headers: { ...headers(), ...extra, ...(body === null ? {} : { "content-type": "application/json" }) },
    body: body === null ? null : JSON.stringify(body),
  });
  if (response.ok) return response;
  let message = `${method} ${path} answered ${response.status}`;
  try {
    const problem = await response.json();
    message = problem.error?.message ?? problem.detail?.[0]?.msg ?? problem.detail ?? message;
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;  // an error page that is not JSON keeps the plain message
  }
  throw new ApiError(response.status, String(message));
}

export async function getJson(path, options) {
  return (await call(path, options)).json();
}

export async function postJson(path, body = {}, extra = {}) {
  return (await call(path, { method: "POST", body, extra })).json();
}
