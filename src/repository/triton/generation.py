"""Generates with the two graphs of a bundle as `generate` of `transformers` does: greedy search and beam search."""

import numpy
import onnxruntime

NEVER = -numpy.inf
# Added to the scores of discarded hypotheses, which keeps their order.
ASIDE = -1e9
TYPES = {"tensor(float)": numpy.float32, "tensor(int64)": numpy.int64, "tensor(int32)": numpy.int32}


class Decoder:
    """The decoder of a batch of sources, with one row per source at first."""

    def __init__(self, encoder, decoder, ids, mask):
        self.decoder, self.mask, self.owners = decoder, mask, list(range(len(ids)))
        self.outputs = [output.name for output in decoder.get_outputs()]
        given = {"input_ids": ids, "attention_mask": mask}
        known = {tensor.name for tensor in encoder.get_inputs()}
        values = encoder.run(None, {name: value for name, value in given.items() if name in known})
        encoded = dict(zip((output.name for output in encoder.get_outputs()), values))
        self.inputs = {tensor.name: tensor for tensor in decoder.get_inputs()}
        self.encoded = {name: value for name, value in encoded.items() if name in self.inputs}
        self.states = {
            name: numpy.zeros([len(ids)] + [fixed(side) for side in tensor.shape[1:]], TYPES[tensor.type])
            for name, tensor in self.inputs.items()
            if name.startswith("past.")
        }
        self.steps = 0

    def step(self, tokens):
        """Feeds each row its next token, and returns the logits of each row."""
        given = {
            "input_ids": numpy.array(tokens, dtype=numpy.int64)[:, None],
            "attention_mask": self.mask,
            "position": numpy.array([self.steps], dtype=numpy.int64),
        }
        feed = {name: value for name, value in given.items() if name in self.inputs}
        values = dict(zip(self.outputs, self.decoder.run(None, {**feed, **self.encoded, **self.states})))
        self.states = {name: values["present." + name.removeprefix("past.")] for name in self.states}
        self.steps += 1
        logits = values["logits"]
        return logits.reshape(len(tokens), logits.shape[-1]).copy()

    def reorder(self, rows):
        """Continues with copies of `rows`."""
        self.states = {name: value[rows] for name, value in self.states.items()}
        owners = [self.owners[row] for row in rows]
        # Values of the encoder are the same for all rows of a source.
        if owners != self.owners:
            self.mask, self.owners = self.mask[rows], owners
            for name, value in self.encoded.items():
                if name.startswith("cross."):
                    self.encoded[name] = value[rows]


def fixed(side):
    return side if isinstance(side, int) else 0


def log_softmax(scores):
    largest = scores.max(axis=-1, keepdims=True)
    powers = numpy.exp(scores - largest).sum(axis=-1, keepdims=True, dtype=numpy.float64)
    scores = scores - (largest + numpy.log(powers).astype(numpy.float32))
    if not numpy.isfinite(largest).all() or numpy.isnan(scores).any():
        raise ValueError("the model's scores are not numbers")
    return scores


def top(scores, count):
    """The indexes of the best scores, best first; of equal scores, the lower index first."""
    count = min(count, scores.size)
    least = numpy.partition(scores, scores.size - count)[scores.size - count]
    places = numpy.flatnonzero(scores >= least)
    return places[numpy.argsort(-scores[places], kind="stable")][:count]


class Config:
    """Options of `generate`, and the model's start and end tokens."""

    def __init__(self, options, settings):
        self.start = options.get("decoder_start_token_id", settings["decoder_start_token_id"])
        self.ends = settings["eos_token_ids"]
        self.beams = options.get("num_beams", 1)
        self.sequences = options.get("num_return_sequences", 1)
        if self.sequences > self.beams:
            raise ValueError("expected `num_return_sequences` of at most `num_beams`")
        most, fewest = options.get("max_new_tokens"), options.get("min_new_tokens")
        self.most = min(options["max_length"] if most is None else most + 1, settings["longest"])
        self.fewest = options.get("min_length", 0) if fewest is None else fewest + 1
        self.penalty = options.get("length_penalty", 1.0)
        self.early = options.get("early_stopping", False)
        self.ngram = options.get("no_repeat_ngram_size", 0)
        self.repetition = numpy.float32(options.get("repetition_penalty", 1.0))
        self.bad_words = [word for word in options.get("bad_words_ids", []) if word not in [[end] for end in self.ends]]
        self.suppressed = options.get("suppress_tokens", [])
        self.suppressed_first = options.get("begin_suppress_tokens", [])
        self.first, self.last = options.get("forced_bos_token_id"), options.get("forced_eos_token_id")
        self.renormalize = options.get("renormalize_logits", False)

    def process(self, text, scores):
        """Applies the logits processors to the scores of the token after `text`, which begins with the start token."""
        if self.repetition != 1.0:
            seen = [token for token in set(text) if 0 <= token < len(scores)]
            worse = scores[seen]
            scores[seen] = numpy.where(worse < 0, worse * self.repetition, worse / self.repetition)
        if self.ngram and len(text) + 1 >= self.ngram:
            before = text[len(text) + 1 - self.ngram :]
            runs = (text[place : place + self.ngram] for place in range(len(text) - self.ngram + 1))
            scores[[run[-1] for run in runs if run[:-1] == before]] = NEVER
        for word in self.bad_words:
            # As in `transformers`, a word is ignored until the text is as long as the word.
            if len(word) == 1 or (len(word) <= len(text) and text[1 - len(word) :] == word[:-1]):
                scores[word[-1]] = NEVER
        if len(text) < self.fewest:
            scores[self.ends] = NEVER
        for token, is_due in ((self.first, len(text) == 1), (self.last, len(text) + 1 == self.most)):
            if token is not None and is_due:
                scores[:] = NEVER
                scores[token] = 0
        scores[self.suppressed] = NEVER
        if len(text) == 1 + (self.first is not None):
            scores[self.suppressed_first] = NEVER
        return log_softmax(scores) if self.renormalize and self.beams > 1 else scores


class Greedy:
    """Greedy search for one source."""

    def __init__(self, search):
        self.search, self.text = search, [search.start]

    def advance(self, logits):
        scores = self.search.process(self.text, logits[0])
        token = int(scores.argmax())
        if not numpy.isfinite(scores[token]):
            raise ValueError("the model's scores are not numbers")
        self.text.append(token)
        continues = token not in self.search.ends and len(self.text) < self.search.most
        return [(0, token)] if continues else []

    def finish(self):
        return [(self.text, 0.0)]


class Beams:
    """Beam search for one source, with the rules of `transformers` since 4.50."""

    def __init__(self, search):
        self.search, self.can_improve = search, True
        # All beams are equal at first, so only the first one is expanded.
        self.running = [([search.start], 0.0 if beam == 0 else ASIDE) for beam in range(search.beams)]
        self.finished = [([search.start], ASIDE, False)] * search.beams

    def advance(self, logits):
        search, width = self.search, logits.shape[-1]
        scores = log_softmax(logits)
        rows = [search.process(text, scores[row]) for row, (text, _) in enumerate(self.running[: len(scores)])]
        # Only the first step has fewer rows than beams.
        bases = numpy.array([score for _, score in self.running], dtype=numpy.float32)
        table = numpy.stack([rows[min(beam, len(rows) - 1)] for beam in range(search.beams)]) + bases[:, None]
        flat = table.reshape(-1)
        places = top(flat, max(2, 1 + len(search.ends)) * search.beams)
        beams, tokens = places // width, places % width
        texts = [(self.running[beam][0] + [int(token)], float(flat[place])) for beam, token, place in zip(beams, tokens, places)]
        length = len(texts[0][0])
        ends = [length >= search.most or text[-1] in search.ends for text, _ in texts]
        self.collect(texts, ends, length)
        order = [(score + (ASIDE if ends[place] else 0.0), place) for place, (_, score) in enumerate(texts)]
        order = sorted(order, key=lambda entry: -entry[0])[: search.beams]
        self.running = [(texts[place][0], score) for score, place in order]
        self.can_improve &= self.may_improve(length)
        if not self.can_improve or (self.is_full() and search.early is True) or all(ends):
            return []
        return [(min(int(beams[place]), len(rows) - 1), texts[place][0][-1]) for _, place in order]

    def collect(self, texts, ends, length):
        aside = ASIDE * (self.is_full() and self.search.early is True) + ASIDE * (not self.can_improve)
        for place, ((text, score), has_ended) in enumerate(zip(texts, ends)):
            # Candidates beyond the number of beams may only continue.
            has_ended = has_ended and place < self.search.beams
            score = score / self.divisor(length) + aside + (0.0 if has_ended else ASIDE)
            self.finished.append((text, score, has_ended))
        self.finished = sorted(self.finished, key=lambda entry: -entry[1])[: self.search.beams]

    def is_full(self):
        return all(has_ended for _, _, has_ended in self.finished)

    def divisor(self, length):
        return float(length - 1) ** self.search.penalty

    def may_improve(self, length):
        is_patient = self.search.early == "never" and self.search.penalty > 0
        best = self.running[0][1] / self.divisor(self.search.most if is_patient else length)
        worst = self.finished[-1][1]
        return any(best > (worst if has_ended else ASIDE) for _, _, has_ended in self.finished)

    def finish(self):
        return [(text, score) for text, score, _ in self.finished[: self.search.sequences]]


class Generator:
    """The encoder and the decoder of a bundle."""

    def __init__(self, encoder, decoder, settings, threads=1):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.encoder, self.decoder = (onnxruntime.InferenceSession(path, options) for path in (encoder, decoder))
        self.settings = settings

    def generate(self, ids, mask, options, is_wanted=lambda: True):
        """The requested number of targets for each row of `ids`, best first, with the start token, and their scores."""
        search = Config({**self.settings["defaults"], **options}, self.settings)
        decoder = Decoder(self.encoder, self.decoder, ids.astype(numpy.int64), mask.astype(numpy.int64))
        groups = [Beams(search) if search.beams > 1 else Greedy(search) for _ in ids]
        rows, tokens = [1] * len(groups), [search.start] * len(groups)
        while tokens:
            if not is_wanted():
                raise ValueError("all clients have disconnected")
            logits, first, parents, following = decoder.step(tokens), 0, [], []
            for place, group in enumerate(groups):
                if rows[place]:
                    continued = group.advance(logits[first : first + rows[place]])
                    parents += [first + row for row, _ in continued]
                    following += [token for _, token in continued]
                    first += rows[place]
                    rows[place] = len(continued)
            if parents and parents != list(range(len(tokens))):
                decoder.reorder(parents)
            tokens = following
        return [text for group in groups for text in group.finish()]
