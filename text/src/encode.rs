//! Texts to token ids within a model's limit: truncated, in pairs, in parts.

use std::ops::Range;

use schemars::JsonSchema;
use serde::Deserialize;
use tokenizers::{
    Encoding as RawEncoding, PostProcessor, TruncationDirection, TruncationParams,
    TruncationStrategy, utils::truncation::truncate_encodings,
};

use super::{
    SpecialTokens, Tokenizer, cannot_tokenize,
    models::{fast_text::Kept, vocabulary::Vocabulary},
};
use kivu_base::{Error, Result};

/// The text end that is cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The beginning.
    #[serde(alias = "Left")]
    Left,
    /// The end.
    #[default]
    #[serde(alias = "Right")]
    Right,
}

/// Applied to inputs above the model's token limit. Special tokens are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncation {
    /// Refuses them.
    Off,
    /// Truncates at this side; in a pair the longer text, then both.
    At(Side),
    /// Truncates only a pair's first text, at its end.
    OnlyFirst,
}

impl Truncation {
    /// The side at which a single text is truncated.
    pub fn side(self) -> Option<Side> {
        match self {
            Self::Off => None,
            Self::At(side) => Some(side),
            Self::OnlyFirst => Some(Side::Right),
        }
    }
}

impl From<Side> for TruncationDirection {
    fn from(side: Side) -> Self {
        match side {
            Side::Left => Self::Left,
            Side::Right => Self::Right,
        }
    }
}

/// A text or text pair as token ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoding {
    /// The token ids, special tokens included.
    pub ids: Vec<u32>,
    /// Per token, the index of its text in a pair. In word windows, the number of the word that begins there.
    pub type_ids: Vec<u32>,
    /// Token count before truncation, if there was any; a lower bound for very long texts.
    pub truncated_from: Option<usize>,
    /// Trailing tokens that no other token attends to.
    pub unattended: usize,
    /// Leading tokens that pooling leaves out.
    pub unpooled: usize,
    /// The number of the text's task, from 1 on, in models with task adapters; 0 for none.
    pub task: u32,
}

/// What is around a pair's texts, which are tokenized one by one.
#[derive(Clone, Copy, Debug)]
pub struct AroundPair<'a> {
    /// Before the first text.
    pub before: &'a str,
    /// Between both texts, and after them.
    pub separator: &'a str,
    /// At the end.
    pub after: &'a str,
    /// Whether a pair may have more tokens than a single text may, as in FlagEmbedding: those of the separator and the end.
    pub is_lenient: bool,
}

impl Encoding {
    /// 1 for each token that others attend to, and 0 for the others.
    pub fn mask(&self) -> impl Iterator<Item = i64> {
        let attended = self.len() - self.unattended;
        (0..self.len()).map(move |place| i64::from(place < attended))
    }

    /// Leaves leading tokens out of poolings; others must remain.
    pub fn leave_unpooled(&mut self, count: usize) -> Result<()> {
        if count > 0 && count >= self.len() {
            return Err(Error::invalid(format!(
                "expected a text with more than the {count} tokens of the prompt, which the model \
                 does not pool, but found {}",
                self.len()
            ))
            .with_hint("send a longer text"));
        }
        self.unpooled = count;
        Ok(())
    }

    /// 1 for each token that is pooled, and 0 for the others.
    pub fn pooling_mask(&self) -> impl Iterator<Item = i64> {
        self.mask()
            .enumerate()
            .map(|(place, mask)| if place < self.unpooled { 0 } else { mask })
    }

    /// Takes the ids and type ids; every token is attended to and pooled, and the text has no task.
    pub fn from_raw(encoding: &RawEncoding, truncated_from: Option<usize>) -> Self {
        let (ids, type_ids) = (
            encoding.get_ids().to_vec(),
            encoding.get_type_ids().to_vec(),
        );
        Self {
            ids,
            type_ids,
            truncated_from,
            ..Self::default()
        }
    }

    /// Puts `ids` between the tokens `before` and `after`, truncated to at most `limit` tokens in total. Errors call
    /// the input `what`.
    fn within(
        mut ids: Vec<u32>,
        [before, after]: &[Vec<u32>; 2],
        limit: usize,
        truncation: Truncation,
        what: &str,
    ) -> Result<Self> {
        let around = before.len() + after.len();
        let found = ids.len() + around;
        let truncated_from = (found > limit).then_some(found);
        if truncated_from.is_some() {
            let side = truncation
                .side()
                .ok_or_else(|| too_long(what, found, limit))?;
            cut(&mut ids, limit.saturating_sub(around), side);
        }
        let ids = [before, &ids, after].map(Vec::as_slice).concat();
        Ok(Self {
            type_ids: vec![0; ids.len()],
            ids,
            truncated_from,
            ..Self::default()
        })
    }

    /// Leaves out a token at the end, but for the first.
    pub fn trim_end(&mut self, token: u32) {
        let last = self.ids.iter().rposition(|id| *id != token).unwrap_or(0);
        self.ids.truncate(last + 1);
        self.type_ids.truncate(last + 1);
    }

    /// Token count.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

impl Tokenizer {
    /// Encodes a text, special tokens included, into at most `limit` tokens.
    pub fn encode(&self, text: &str, limit: usize, truncation: Truncation) -> Result<Encoding> {
        let text = self.within_reach(text, limit, truncation)?;
        let ids = match self.raw.get_model() {
            Vocabulary::FastText(features) => {
                let kept = match truncation.side() {
                    Some(Side::Left) => Kept::Last,
                    Some(Side::Right) | None => Kept::First,
                };
                // One more, so that the text is known to be longer.
                features.ids_within(text, kept, limit.saturating_add(1))
            }
            _ => self.ids(text)?,
        };
        Encoding::within(ids, &self.around, limit, truncation, "text")
    }

    /// Encodes a text pair, special tokens included, into at most `limit` tokens. An empty second text
    /// keeps its separator.
    pub fn encode_pair(
        &self,
        pair: [&str; 2],
        limit: usize,
        truncation: Truncation,
    ) -> Result<Encoding> {
        if !self.reads_pairs() {
            return Err(Error::invalid(
                "expected a text, but found a pair of texts, which the model does not read",
            )
            .with_hint("join them"));
        }
        let encode = |text| self.encode_raw(self.within_reach(text, limit, truncation)?);
        let [mut first, mut second] = [encode(pair[0])?, encode(pair[1])?];
        // The `tokenizers` crate does the same; most post-processors set their own types.
        second.set_type_ids(vec![1; second.len()]);
        let special_tokens = self
            .post_processor
            .as_ref()
            .map_or(0, |processor| processor.added_tokens(true));
        let found = first.len() + second.len() + special_tokens;
        let truncated_from = (found > limit).then_some(found);
        if truncated_from.is_some() {
            let side = truncation
                .side()
                .ok_or_else(|| too_long("pair of texts", found, limit))?;
            check_around(special_tokens, limit)?;
            let strategy = match truncation {
                Truncation::OnlyFirst => TruncationStrategy::OnlyFirst,
                Truncation::Off | Truncation::At(_) => TruncationStrategy::LongestFirst,
            };
            let parameters = TruncationParams {
                direction: side.into(),
                max_length: limit - special_tokens,
                strategy,
                stride: 0,
            };
            let of_second = second.len();
            let (cut_first, cut_second) = truncate_encodings(first, Some(second), &parameters)
                .map_err(|_| {
                    Error::too_large(format!(
                        "the pair's second text has {of_second} tokens, which leave no room for \
                         the first one"
                    ))
                    .with_hint(format!(
                        "the model takes at most {limit} in all, so shorten the second text"
                    ))
                })?;
            (first, second) = (cut_first, cut_second.unwrap_or_default());
            first.take_overflowing();
            second.take_overflowing();
        }
        Ok(Encoding::from_raw(
            &self.add_special_tokens(first, Some(second))?,
            truncated_from,
        ))
    }

    /// Encodes `before`, `text` and `after` separately, without special tokens, into at most `limit` tokens. Only
    /// `text` is truncated.
    pub fn encode_between(
        &self,
        [before, text, after]: [&str; 3],
        limit: usize,
        truncation: Truncation,
    ) -> Result<Encoding> {
        let around = [self.ids(before)?, self.ids(after)?];
        check_around(around.iter().map(Vec::len).sum(), limit)?;
        let between = self.ids(self.within_reach(text, limit, truncation)?)?;
        Encoding::within(between, &around, limit, truncation, "pair of texts")
    }

    /// Encodes a pair's texts and the parts around them one by one, without special tokens, into at most `limit` tokens.
    /// The first text keeps three quarters of the texts' share, and the second one the rest.
    pub fn encode_pair_between(
        &self,
        around: &AroundPair<'_>,
        pair: [&str; 2],
        limit: usize,
        truncation: Truncation,
    ) -> Result<Encoding> {
        let [before, separator, after] = [
            self.ids(around.before)?,
            self.ids(around.separator)?,
            self.ids(around.after)?,
        ];
        let end = separator.len() + after.len();
        let size = before.len() + separator.len() + end;
        check_around(size, limit)?;
        let (longest, room) = match around.is_lenient {
            true => (limit.saturating_sub(2 * end), limit - size),
            false => (limit - before.len() - end, limit - size),
        };
        let encode = |text| self.ids(self.within_reach(text, longest, truncation)?);
        let [mut first, mut second] = [encode(pair[0])?, encode(pair[1])?];
        let found = size + first.len() + second.len();
        let of_first = first.len().min(longest * 3 / 4).min(room);
        let of_second = second.len().min(longest).min(room - of_first);
        let is_cut = [first.len() > of_first, second.len() > of_second];
        if is_cut != [false; 2] {
            let side = truncation.side().ok_or_else(|| match is_cut {
                [true, _] => too_long("first text of a pair", first.len(), of_first),
                _ => too_long("pair of texts", found, limit),
            })?;
            for (ids, kept) in [(&mut first, of_first), (&mut second, of_second)] {
                cut(ids, kept, side);
            }
        }
        let ids = [&before, &first, &separator, &second, &separator, &after];
        let ids = ids.map(Vec::as_slice).concat();
        Ok(Encoding {
            type_ids: vec![0; ids.len()],
            ids,
            truncated_from: (is_cut != [false; 2]).then_some(found),
            ..Encoding::default()
        })
    }

    /// Encodes a text with several parts, special tokens included; fails if it exceeds `limit` tokens. `ends` are
    /// the parts' ends in bytes. A token across two parts belongs to the second; special tokens belong to the
    /// first and the last part. Parts without other tokens are refused.
    pub fn encode_parts(
        &self,
        text: &str,
        ends: &[usize],
        limit: usize,
    ) -> Result<(Encoding, Vec<Range<usize>>)> {
        let too_long = |found: usize, unit: &str| {
            Error::too_large(format!(
                "the texts have {found} {unit} together, but the model takes at most {limit} \
                 tokens"
            ))
            .with_hint("send fewer texts at once")
        };
        if self.exceeds(text, limit)? {
            return Err(too_long(text.len(), "bytes"));
        }
        // With offsets, unlike `encode_fast`.
        let encoding = self
            .call(|raw| raw.encode(text, false))
            .map_err(cannot_tokenize)?;
        let found = encoding.len() + self.special_count();
        if found > limit {
            return Err(too_long(found, "tokens"));
        }
        let offsets = encoding.get_offsets();
        let cuts: Vec<usize> = ends
            .iter()
            .map(|end| offsets.partition_point(|(_, of_token)| of_token <= end))
            .collect();
        let starts = [0].iter().chain(&cuts);
        if let Some(empty) = starts.zip(&cuts).position(|(start, end)| start == end) {
            return Err(Error::invalid(format!(
                "expected at least one token in each chunk for late chunking, but found none in \
                 chunk {empty}, counted from 0"
            ))
            .with_hint("leave it out"));
        }
        let encoding = self.add_special_tokens(encoding, None)?;
        let before = encoding
            .get_special_tokens_mask()
            .iter()
            .take_while(|special| **special == 1)
            .count();
        let mut start = 0;
        let ranges = cuts.iter().enumerate().map(|(part, cut)| {
            let end = if part + 1 == cuts.len() {
                encoding.len()
            } else {
                before + cut
            };
            std::mem::replace(&mut start, end)..end
        });
        let ranges = ranges.collect();
        Ok((Encoding::from_raw(&encoding, None), ranges))
    }

    /// Encodes a text, without special tokens, into at most `limit` tokens.
    pub fn encode_bare(
        &self,
        text: &str,
        limit: usize,
        truncation: Truncation,
    ) -> Result<Encoding> {
        let ids = self.ids(self.within_reach(text, limit, truncation)?)?;
        Encoding::within(ids, &Default::default(), limit, truncation, "text")
    }

    /// The special tokens before and after a single text.
    pub fn special_ids(&self) -> &[Vec<u32>; 2] {
        &self.around
    }

    /// Accepts a client's token ids, without adding special tokens.
    pub fn accept(&self, ids: Vec<u32>, limit: usize, truncation: Truncation) -> Result<Encoding> {
        self.check_ids(&ids)?;
        Encoding::within(ids, &Default::default(), limit, truncation, "input")
    }

    /// Whether a text has more than `max` tokens.
    pub fn exceeds(&self, text: &str, max: usize) -> Result<bool> {
        Ok(self.with_more_tokens(text, max, Side::Left)?.len() < text.len())
    }

    /// The text part that may be among its first or last `limit` tokens, so that megabytes are not tokenized only to
    /// be cut off or refused.
    pub fn within_reach<'a>(
        &self,
        text: &'a str,
        limit: usize,
        truncation: Truncation,
    ) -> Result<&'a str> {
        if text.len() <= reach(limit) {
            return Ok(text);
        }
        let kept = match truncation.side() {
            Some(Side::Left) => Side::Right,
            Some(Side::Right) | None => Side::Left,
        };
        let part = self.with_more_tokens(text, limit, kept)?;
        if truncation == Truncation::Off && part.len() < text.len() {
            return Err(Error::too_large(format!(
                "the text has {} bytes, but the model takes at most {limit} tokens",
                text.len()
            ))
            .with_hint("set `truncate` to shorten it"));
        }
        Ok(part)
    }

    /// A part at a text's `side` that has more than `count` tokens; the whole text if it may have fewer, as white space and
    /// very long words do. Encodes pieces, to save memory, with an allowance for tokens that are cut in two.
    fn with_more_tokens<'a>(&self, text: &'a str, count: usize, side: Side) -> Result<&'a str> {
        const PIECE_BYTES: usize = 64 * 1024;
        const ALLOWANCE: usize = 64;
        let (mut rest, mut found) = (text, 0_usize);
        while rest.len() > PIECE_BYTES && found <= count {
            let piece;
            (piece, rest) = match side {
                Side::Left => rest.split_at(rest.floor_char_boundary(PIECE_BYTES)),
                Side::Right => {
                    let (others, piece) =
                        rest.split_at(rest.ceil_char_boundary(rest.len() - PIECE_BYTES));
                    (piece, others)
                }
            };
            found += self.ids(piece)?.len().saturating_sub(ALLOWANCE);
        }
        let size = if found > count {
            text.len() - rest.len()
        } else {
            text.len()
        };
        Ok(match side {
            Side::Left => &text[..size],
            Side::Right => &text[text.len() - size..],
        })
    }

    /// The text part that its encoding covers, for models with a built-in tokenizer.
    pub fn truncated_text(
        &self,
        text: String,
        encoding: &Encoding,
        limit: usize,
        truncation: Truncation,
    ) -> Result<String> {
        let (Some(_), Some(side)) = (encoding.truncated_from, truncation.side()) else {
            return Ok(text);
        };
        let reachable = self.within_reach(&text, limit, truncation)?;
        // With offsets, unlike `encode_fast`.
        let encoding = self
            .call(|raw| raw.encode(reachable, false))
            .map_err(cannot_tokenize)?;
        let encoding = self.post_process(encoding, None, SpecialTokens::LeftOut)?;
        let kept = limit
            .saturating_sub(self.special_count())
            .min(encoding.len());
        let kept = match side {
            Side::Right => &encoding.get_offsets()[..kept],
            Side::Left => &encoding.get_offsets()[encoding.len() - kept..],
        };
        let start = kept.iter().map(|(start, _)| *start).min().unwrap_or(0);
        let end = kept.iter().map(|(_, end)| *end).max().unwrap_or(0);
        Ok(reachable.get(start..end).unwrap_or_default().to_owned())
    }
}

/// Bytes that a text's first or last `limit` tokens have, but for long white space and very long words.
pub fn reach(limit: usize) -> usize {
    const TOKEN_BYTES: usize = 1024;
    limit.saturating_mul(TOKEN_BYTES)
}

/// Shortens a text to at most `kept` tokens.
fn cut(ids: &mut Vec<u32>, kept: usize, side: Side) {
    match side {
        Side::Left => drop(ids.drain(..ids.len().saturating_sub(kept))),
        Side::Right => ids.truncate(kept),
    }
}

/// Refuses a limit that leaves no room for a pair's texts.
fn check_around(size: usize, limit: usize) -> Result<()> {
    match size > limit {
        true => Err(Error::too_large(format!(
            "the tokens around a pair of texts are {size}, but the model takes at most {limit}"
        ))),
        false => Ok(()),
    }
}

fn too_long(input: &str, found: usize, limit: usize) -> Error {
    Error::too_large(format!(
        "the {input} has {found} tokens, but the model takes at most {limit}"
    ))
    .with_hint("set `truncate` to shorten it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_left_out_at_the_end() {
        let trimmed = |ids: &[u32]| {
            let mut encoding = Encoding {
                ids: ids.to_vec(),
                type_ids: vec![0; ids.len()],
                ..Encoding::default()
            };
            encoding.trim_end(7);
            assert_eq!(encoding.ids.len(), encoding.type_ids.len());
            encoding.ids
        };
        assert_eq!(trimmed(&[1, 7, 2, 7, 7]), [1, 7, 2]);
        assert_eq!(trimmed(&[7, 7]), [7]);
        assert_eq!(trimmed(&[1]), [1]);
        assert!(trimmed(&[]).is_empty());
    }
}
