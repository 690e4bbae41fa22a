//! Texts in word windows, for models that read each word's first token.

use std::{borrow::Cow, collections::VecDeque, iter, sync::LazyLock};

use regex::Regex;

use super::{Encoding, Side, Tokenizer, Truncation, Window, WindowOptions, reach};
use kivu_base::{Error, Result};

/// Matches words of letters and digits, which hyphens may join, and all other characters one by one, as in
/// the `gliner` package.
///
/// Unlike the crate's, Python's `\w` excludes combining marks, and its `\s` includes four control characters.
#[expect(clippy::expect_used, reason = "the pattern is fixed")]
static WORDS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"[\p{L}\p{N}_]+(?:-[\p{L}\p{N}_]+)*|[^\s\x1c-\x1f]").expect("the pattern is valid")
});

/// Matches web addresses, e-mail addresses, names after `@`, words of letters, digits and marks, which hyphens or
/// underscores may join, and all other characters one by one, as in the `gliner2` package.
///
/// In Python, `[a-z]` without case includes two letters that the crate's does not.
#[expect(clippy::expect_used, reason = "the pattern is fixed")]
static ADDRESSES_AND_WORDS: LazyLock<Regex> = LazyLock::new(|| {
    const SPACE: &str = r"\s\x1c-\x1f";
    const LETTER: &str = r"a-z\u{130}\u{131}";
    const WORD: &str = r"[\p{L}\p{N}_\p{M}\u{200c}\u{200d}]+";
    let pattern = format!(
        r"(?i)https?://[^{SPACE}]+|www\.[^{SPACE}]+|[{LETTER}0-9._%+-]+@[{LETTER}0-9.-]+\.[{LETTER}]{{2,}}|@[{LETTER}0-9_]+|{WORD}(?:[-_]{WORD})*|[^{SPACE}]"
    );
    Regex::new(&pattern).expect("the pattern is valid")
});

/// The tokens in front of each text, and how a model reads its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WordPrompt {
    /// The token ids between the first special token and the text.
    pub ids: Vec<u32>,
    /// The token ids of words in front of each text's own, which are numbered with them, but have no spans.
    pub words: Vec<Vec<u32>>,
    /// Maximum words per text or window.
    pub max_words: usize,
    /// How texts become words.
    pub form: WordForm,
    /// Whether the model finds words of the text, which must all have tokens.
    pub finds_words: bool,
}

/// How texts become words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordForm {
    /// Words of the package `gliner`.
    Gliner,
    /// Words of the package `gliner2`: whole addresses, and lower case. A text that does not end with a full stop, an
    /// exclamation mark or a question mark gets a full stop, a word with an empty span, or the end of an address. There are no special tokens around
    /// a text.
    Gliner2,
}

struct Word {
    text: String,
    /// Start and end in the text, in characters.
    span: (usize, usize),
}

/// What a window holds.
#[derive(Clone, Copy)]
struct Limits {
    max_words: usize,
    /// Maximum tokens.
    room: usize,
    finds_words: bool,
}

struct WordTokens {
    ids: Vec<u32>,
    span: (usize, usize),
}

fn words(text: &str, form: WordForm) -> impl Iterator<Item = Word> {
    let (pattern, is_lower) = match form {
        WordForm::Gliner => (&WORDS, false),
        WordForm::Gliner2 => (&ADDRESSES_AND_WORDS, true),
    };
    // The stop may become a part of an address.
    let adds_stop = form == WordForm::Gliner2 && !text.ends_with(['.', '!', '?']);
    let read = if adds_stop {
        Cow::Owned(format!("{text}."))
    } else {
        Cow::Borrowed(text)
    };
    let (mut byte, mut character) = (0, 0);
    iter::from_fn(move || {
        let found = pattern.find_at(&read, byte)?;
        let start = character + read[byte..found.start()].chars().count();
        let end = start + found.as_str().chars().count();
        (byte, character) = (found.end(), end);
        let word = found.as_str();
        let has_stop = usize::from(byte > text.len());
        let text = if is_lower {
            word.to_lowercase()
        } else {
            word.to_owned()
        };
        Some(Word {
            text,
            span: (start, end - has_stop),
        })
    })
}

impl Tokenizer {
    /// Encodes a text's words one by one, after a prompt, into windows with at most `limit` tokens, special tokens
    /// included. With a stride, windows share that many words.
    ///
    /// Each word's first token has as its type the word's number in the window, from 1 on; all other tokens have the
    /// type 0. Spans refer to words. A text without words has no windows.
    pub fn word_windows(
        &self,
        text: &str,
        prompt: &WordPrompt,
        limit: usize,
        options: WindowOptions,
    ) -> Result<Vec<Window>> {
        let WordPrompt {
            ids,
            words: first,
            max_words,
            form,
            finds_words,
        } = prompt;
        let [before, after]: [&[u32]; 2] = match form {
            WordForm::Gliner => self.special_ids().each_ref().map(Vec::as_slice),
            WordForm::Gliner2 => [&[]; 2],
        };
        let own = ids.len() + first.iter().map(Vec::len).sum::<usize>();
        let room = limit.saturating_sub(before.len() + after.len() + own);
        if room == 0 {
            return Err(Error::too_large(format!(
                "the labels have {} tokens, but the model takes at most {limit}, text tokens \
                 included",
                own
            ))
            .with_hint("send fewer or shorter labels"));
        }
        let limits = Limits {
            max_words: *max_words,
            room,
            finds_words: *finds_words,
        };
        let (found, is_whole) = match options.stride {
            Some(stride) if stride >= *max_words => {
                return Err(Error::invalid(format!(
                    "expected a `stride` below {max_words}, the words of a window, but found {stride}"
                )));
            }
            Some(_) => self.read_words(words(text, *form), limits, options.max_windows)?,
            None if options.truncation == Truncation::At(Side::Left) => {
                let last = last_words(text, *form, max_words.saturating_add(1))
                    .into_iter()
                    .rev();
                let (mut found, is_whole) = self.read_words(last, limits, 1)?;
                found.reverse();
                (found, is_whole)
            }
            None => self.read_words(words(text, *form), limits, 1)?,
        };
        let windows = match options.stride {
            None if !is_whole && options.truncation == Truncation::Off => {
                return Err(Error::too_large(format!(
                    "expected a text of at most {max_words} words and {room} tokens, without the \
                     labels' tokens, but found a longer one"
                ))
                .with_hint("set `stride` to read it in windows"));
            }
            None if found.is_empty() => Vec::new(),
            None => vec![&found[..]],
            Some(stride) => {
                let windows = overlapping(&found, [*max_words, room], stride);
                if !is_whole || windows.len() > options.max_windows {
                    return Err(Error::too_large(format!(
                        "expected at most {} windows of {max_words} words and {room} tokens that \
                         share {stride} words, but found more",
                        options.max_windows
                    ))
                    .with_hint("send fewer or shorter texts, or a smaller `stride`"));
                }
                windows
            }
        };
        let truncated_from = (!is_whole).then_some(limit + 1);
        Ok(windows
            .into_iter()
            .map(|words| window(words, first, [before, ids, after], truncated_from))
            .collect())
    }

    /// Word tokens as far as they fit into `windows` windows, and whether all of them fit.
    fn read_words(
        &self,
        words: impl Iterator<Item = Word>,
        limits: Limits,
        windows: usize,
    ) -> Result<(Vec<WordTokens>, bool)> {
        let Limits {
            max_words,
            room,
            finds_words,
        } = limits;
        let [max_words, max_tokens] = [max_words, room].map(|limit| limit.saturating_mul(windows));
        let (mut read, mut tokens) = (Vec::new(), 0);
        for Word { text, span } in words {
            let too_long = |found: usize, unit: &str| {
                Error::too_large(format!(
                    "a word of the text has {found} {unit}, but the model takes at most {room} tokens, without the labels' \
                     tokens"
                ))
            };
            if read.len() == max_words {
                return Ok((read, false));
            }
            if text.len() > reach(room) {
                return Err(too_long(text.len(), "bytes"));
            }
            let ids = self.ids(&text)?;
            if ids.len() > room {
                return Err(too_long(ids.len(), "tokens"));
            }
            tokens += ids.len();
            if tokens > max_tokens {
                return Ok((read, false));
            }
            // `gliner` gives its place to the next word, and `gliner2` the next word's vector to it.
            if ids.is_empty() && finds_words {
                return Err(Error::invalid(format!(
                    "the character at {} has no tokens, as some control characters, so that entities would be misplaced",
                    span.0
                ))
                .with_hint("replace it by a space"));
            }
            if !ids.is_empty() {
                read.push(WordTokens { ids, span });
            }
        }
        Ok((read, true))
    }
}

/// A text's last `max` words.
fn last_words(text: &str, form: WordForm, max: usize) -> VecDeque<Word> {
    let mut last = VecDeque::new();
    for word in words(text, form) {
        if last.len() == max {
            last.pop_front();
        }
        last.push_back(word);
    }
    last
}

/// Windows with as many words as possible, which share `stride` words.
fn overlapping(
    words: &[WordTokens],
    [max_words, room]: [usize; 2],
    stride: usize,
) -> Vec<&[WordTokens]> {
    let (mut windows, mut start, mut end) = (Vec::new(), 0, 0);
    while end < words.len() {
        let mut tokens = 0;
        let fits = |word: &&WordTokens| {
            tokens += word.ids.len();
            tokens <= room
        };
        end = start
            + words[start..]
                .iter()
                .take(max_words)
                .take_while(fits)
                .count();
        windows.push(&words[start..end]);
        // Words with many tokens may leave no room for the stride.
        start = end.saturating_sub(stride).max(start + 1);
    }
    windows
}

/// The word window after a prompt and its words.
fn window(
    words: &[WordTokens],
    first: &[Vec<u32>],
    [before, prompt, after]: [&[u32]; 3],
    truncated_from: Option<usize>,
) -> Window {
    let mut ids = [before, prompt].concat();
    let mut type_ids = vec![0; ids.len()];
    let all = first.iter().chain(words.iter().map(|word| &word.ids));
    for (number, word) in (1..).zip(all) {
        ids.extend(word);
        type_ids.push(number);
        type_ids.resize(ids.len(), 0);
    }
    ids.extend(after);
    type_ids.resize(ids.len(), 0);
    let spans = words.iter().map(|word| Some(word.span)).collect();
    Window {
        encoding: Encoding {
            ids,
            type_ids,
            truncated_from,
            ..Encoding::default()
        },
        spans,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_takes_the_full_stop_that_is_added() {
        let words = |text| split_as(WordForm::Gliner2, text);
        let word = |text: &str, start, end| (text.to_owned(), (start, end));
        assert_eq!(
            words("See http://Ä.b"),
            [word("see", 0, 3), word("http://ä.b.", 4, 14)]
        );
        assert_eq!(words("www.a.b!"), [word("www.a.b!", 0, 8)]);
        assert_eq!(
            words("see it"),
            [word("see", 0, 3), word("it", 4, 6), word(".", 6, 6)]
        );
        assert_eq!(words(""), [word(".", 0, 0)]);
    }

    fn split_as(form: WordForm, text: &str) -> Vec<(String, (usize, usize))> {
        words(text, form)
            .map(|word| (word.text, word.span))
            .collect()
    }

    fn split(text: &str) -> Vec<(String, (usize, usize))> {
        split_as(WordForm::Gliner, text)
    }

    #[test]
    fn words_are_those_of_python() {
        let found = split("Ann O'Neill-McDonald, a_b--c x- ½²");
        let texts: Vec<&str> = found.iter().map(|(text, _)| text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "Ann",
                "O",
                "'",
                "Neill-McDonald",
                ",",
                "a_b",
                "-",
                "-",
                "c",
                "x",
                "-",
                "½²"
            ]
        );
        assert_eq!(found[3].1, (6, 20));
        // Combining marks, joined emoji and the control characters that Python takes for white space.
        let texts = split("Jose\u{301} 👩\u{200d}👧 a\u{1c}b\u{85}\u{a0}");
        let expected = [
            ("Jose", (0, 4)),
            ("\u{301}", (4, 5)),
            ("👩", (6, 7)),
            ("\u{200d}", (7, 8)),
            ("👧", (8, 9)),
            ("a", (10, 11)),
            ("b", (12, 13)),
        ];
        assert_eq!(texts, expected.map(|(text, span)| (text.to_owned(), span)));
        assert!(split(" \t\u{3000}").is_empty());
    }

    /// The words of `gliner2` 2.1.0's `WhitespaceTokenSplitter`, for its normalized text.
    #[test]
    fn addresses_are_words_and_texts_end_with_a_stop() {
        let texts = |text: &str| -> Vec<String> {
            split_as(WordForm::Gliner2, text)
                .into_iter()
                .map(|(text, _)| text)
                .collect()
        };
        assert_eq!(
            texts(
                "Mail Ann_B-c.d+e%f@Mail.example.org or @ann_b, see HTTPS://example.org/A?b=1,2 a@b.c!"
            ),
            [
                "mail",
                "ann_b-c.d+e%f@mail.example.org",
                "or",
                "@ann_b",
                ",",
                "see",
                "https://example.org/a?b=1,2",
                "a",
                "@b",
                ".",
                "c",
                "!",
            ]
        );
        assert_eq!(
            texts("Jose\u{301}-Mari\u{301}a a--b _x_ ſ@ſ.ſk\u{131}"),
            [
                "jose\u{301}-mari\u{301}a",
                "a",
                "-",
                "-",
                "b",
                "_x_",
                "ſ@ſ.ſk\u{131}",
                ".",
            ]
        );
        assert_eq!(
            split_as(WordForm::Gliner2, "Hi  "),
            [("hi".to_owned(), (0, 2)), (".".to_owned(), (4, 4))]
        );
        assert_eq!(texts(""), ["."]);
    }

    #[test]
    fn windows_share_words() {
        let sizes = [1, 1, 5, 1, 1, 1];
        let words: Vec<WordTokens> = sizes
            .iter()
            .map(|size| WordTokens {
                ids: vec![0; *size],
                span: (0, 0),
            })
            .collect();
        let lengths = |limits, stride| -> Vec<Vec<usize>> {
            let windows = overlapping(&words, limits, stride);
            windows
                .iter()
                .map(|window| window.iter().map(|word| word.ids.len()).collect())
                .collect()
        };
        assert_eq!(
            lengths([3, 100], 1),
            [vec![1, 1, 5], vec![5, 1, 1], vec![1, 1]]
        );
        assert_eq!(
            lengths([3, 5], 2),
            [vec![1, 1], vec![1], vec![5], vec![1, 1, 1]]
        );
        assert_eq!(lengths([100, 100], 0), [sizes.to_vec()]);
    }
}
