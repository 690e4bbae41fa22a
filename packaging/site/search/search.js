// The page: passes queries to the worker, and shows the documents by similarity.

const form = document.querySelector("form");
const status = document.querySelector("output");
const list = document.querySelector("ol");
/** The worker with the model, once a search has asked for it. */
let worker;
/** The last query; results of earlier ones are not shown. */
let asked = 0;

async function started() {
  // It must serve the worker's files before they are fetched, to keep them.
  await navigator.serviceWorker?.register("offline.js").then(() => navigator.serviceWorker.ready);
  const made = new Worker("worker.js", { type: "module" });
  made.onmessage = ({ data }) => show(data);
  made.onerror = ({ message }) => show({ number: asked, error: message || "expected a worker, but it did not start" });
  return made;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const query = new FormData(form).get("query").trim();
  if (query === "") return;
  asked += 1;
  status.value = worker ? "Searching…" : "Loading the model…";
  worker ??= started();
  (await worker).postMessage({ number: asked, query });
});

function show({ number, error, found, milliseconds }) {
  if (number !== asked) return;
  if (error !== undefined) {
    status.value = error;
    worker = undefined;
    return;
  }
  status.value = `${milliseconds.toFixed(1)} ms for the query`;
  list.replaceChildren(
    ...found.map(({ text, score }) => {
      const item = document.createElement("li");
      const number = document.createElement("small");
      number.textContent = ` ${score.toFixed(2)}`;
      item.append(text, number);
      return item;
    }),
  );
}
