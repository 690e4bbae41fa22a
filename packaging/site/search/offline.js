// Keeps the page's files, and answers with them when there is no connection. The package keeps the model's files itself.

const CACHE = "kivu-search";

addEventListener("install", (event) => {
  const kept = caches.open(CACHE).then((cache) => cache.addAll(["./", "search.js", "worker.js"]));
  event.waitUntil(kept.then(() => skipWaiting()));
});

addEventListener("activate", (event) => event.waitUntil(clients.claim()));

addEventListener("fetch", (event) => {
  const { request } = event;
  const isModel = new URL(request.url).pathname.startsWith(new URL("model/", registration.scope).pathname);
  if (request.method === "GET" && !isModel) event.respondWith(answered(request));
});

async function answered(request) {
  const cache = await caches.open(CACHE);
  try {
    const response = await fetch(request);
    if (response.ok) await cache.put(request, response.clone());
    return response;
  } catch (error) {
    const kept = await cache.match(request);
    if (kept) return kept;
    throw error;
  }
}
