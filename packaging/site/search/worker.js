// Finds the documents that are most similar to a query.

import { load } from "./package/index.js";

const DOCUMENTS = [
  "The ferry to the island leaves at seven in the morning and takes two hours.",
  "Bread rises faster in a warm kitchen.",
  "The museum is closed on Mondays; entry is free on the first Sunday of the month.",
  "Reset your password with the link in the e-mail that we have sent you.",
  "A bicycle chain lasts longer if it is cleaned and oiled every few weeks.",
  "Refunds arrive within five working days on the card that you paid with.",
  "Tomatoes need at least six hours of sun a day.",
  "The night train from Vienna arrives in Venice at half past eight.",
  "Our office is on the third floor; please ring at the door.",
  "Cats sleep for twelve to sixteen hours a day.",
];

const started = (async () => {
  const model = await load(new URL("model/", import.meta.url));
  return { model, vectors: await model.encode(DOCUMENTS, { normalize: true }) };
})();
// Each message reports it.
started.catch(() => {});

onmessage = async ({ data: { number, query } }) => {
  try {
    const { model, vectors } = await started;
    const begin = performance.now();
    const vector = await model.encode(query, { normalize: true });
    const milliseconds = performance.now() - begin;
    const score = (other) => other.reduce((sum, value, place) => sum + value * vector[place], 0);
    const found = DOCUMENTS.map((text, place) => ({ text, score: score(vectors[place]) }));
    found.sort((left, right) => right.score - left.score);
    postMessage({ number, found: found.slice(0, 3), milliseconds });
  } catch (error) {
    postMessage({ number, error: String(error?.message ?? error) });
  }
};
