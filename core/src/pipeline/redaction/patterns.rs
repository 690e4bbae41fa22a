//! Personal data and secrets with a written form: found by an expression and, where there are check digits, by those.

use std::{
    cmp::Ordering,
    ops::Range,
    sync::{LazyLock, OnceLock},
};

use regex::Regex;
use serde::Deserialize;

use super::{
    checks,
    plain::{Plain, Separators},
};
use kivu_base::{Error, Result, names::choice};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    patterns: Vec<Pattern>,
}

/// A pattern to find, and the publication of its rule.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pattern {
    /// Its label in results.
    pub name: String,
    expression: String,
    /// The publication with its form and check digits.
    pub source: String,
    /// Whether it may touch a word, as in `Card4111111111111111`: hardly a product number has its form and check digits.
    #[serde(default)]
    pub touches_words: bool,
    #[serde(skip)]
    compiled: OnceLock<Option<Regex>>,
}

/// All patterns, from `patterns.toml`.
pub static PATTERNS: LazyLock<Vec<Pattern>> = LazyLock::new(|| {
    let table: Option<Table> = toml::from_str(include_str!("patterns.toml")).ok();
    table.map_or_else(Vec::new, |table| table.patterns)
});

/// Selected patterns: indexes in [`PATTERNS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patterns(Vec<usize>);

/// A pattern's place in a text, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// Its bytes.
    pub range: Range<usize>,
    /// The pattern's name.
    pub name: &'static str,
}

/// Selects all patterns.
const ALL: &str = "all";
const PHONE_NUMBER: &str = "PHONE_NUMBER";
/// International numbers with fewer digits may continue in the next line.
const WHOLE_PHONE_NUMBER: usize = 11;
/// Letters of a word that a number may touch.
const MAX_WORD: usize = 32;
/// A longer candidate that is refused is skipped as a whole, so that the search stays linear.
const MAX_RETRIED: usize = 256;

impl Patterns {
    /// All patterns.
    pub fn all() -> Self {
        Self((0..PATTERNS.len()).collect())
    }

    /// The patterns with these names; `all` selects all.
    ///
    /// # Errors
    /// There is no such pattern.
    pub fn new<T: AsRef<str>>(names: &[T]) -> Result<Self> {
        let mut places = Vec::new();
        for name in names.iter().map(AsRef::as_ref) {
            if name == ALL {
                places.extend(0..PATTERNS.len());
                continue;
            }
            let place = PATTERNS.iter().position(|pattern| pattern.name == name);
            places.push(place.ok_or_else(|| {
                let known = PATTERNS.iter().map(|pattern| pattern.name.clone());
                let known: Vec<_> = [ALL.to_owned()].into_iter().chain(known).collect();
                Error::invalid(format!("unknown pattern `{name}`"))
                    .with_hint(format!("choose {}", choice(&known)))
            })?);
        }
        places.sort_unstable();
        places.dedup();
        Ok(Self(places))
    }

    /// Whether none is selected.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All matches, also of patterns that overlap: the longest first, and the first in the table among equals.
    ///
    /// What seemed to continue a match, as the date in `2024-01-31-4111111111111111`, is looked for once more without it.
    pub fn matches(&self, text: &str) -> Vec<Match> {
        let mut found = self.search(text);
        if found.iter().any(|found| has_neighbour(text, &found.range)) {
            let mut rest = text.to_owned();
            for Match { range, .. } in &found {
                rest.replace_range(range.clone(), &"\n".repeat(range.len()));
            }
            found.append(&mut self.search(&rest));
        }
        found.sort_by_key(|found| std::cmp::Reverse(found.range.len()));
        found
    }

    /// The matches that stand for themselves.
    fn search(&self, text: &str) -> Vec<Match> {
        let mut found: Vec<Match> = Vec::new();
        let plain = Plain::of(text, Separators::AsWritten);
        let joined = Plain::of(text, Separators::Joined);
        let is_joined = joined.text != plain.text;
        for place in &self.0 {
            let pattern = &PATTERNS[*place];
            let Some(expression) = pattern.compiled() else {
                continue;
            };
            let mut written = pattern.find_all(expression, &plain);
            if is_joined && pattern.has_separators() {
                let mut others = pattern.find_all(expression, &joined);
                written.retain(|part| {
                    let own = &text[part.range.clone()];
                    let is_part = |whole: &Match| match whole.range.start.cmp(&part.range.start) {
                        Ordering::Equal => {
                            whole.range.end > part.range.end && pattern.may_continue(own)
                        }
                        // A form's space is no country code's plus.
                        Ordering::Less => own.starts_with('+'),
                        Ordering::Greater => false,
                    };
                    !overlapping(&others, part).is_some_and(is_part)
                });
                others.retain(|other| overlapping(&written, other).is_none());
                found.append(&mut others);
            }
            found.append(&mut written);
        }
        found
    }
}

/// Whether a letter or digit is next to a match, or behind a hyphen or point next to it.
fn has_neighbour(text: &str, range: &Range<usize>) -> bool {
    is_neighbour(text[..range.start].chars().rev()) || is_neighbour(text[range.end..].chars())
}

fn is_neighbour(mut next: impl Iterator<Item = char>) -> bool {
    let first = match next.next() {
        Some('-' | '.') => next.next(),
        first => first,
    };
    first.is_some_and(|c| c.is_numeric() || is_joined(c))
}

/// The match that overlaps `other` among matches in the text's order.
fn overlapping<'a>(matches: &'a [Match], other: &Match) -> Option<&'a Match> {
    let next = matches.partition_point(|found| found.range.end <= other.range.start);
    matches
        .get(next)
        .filter(|found| found.range.start < other.range.end)
}

impl Pattern {
    /// The expression; all of them are compiled in a test.
    pub fn compiled(&self) -> Option<&Regex> {
        let expression = || Regex::new(&self.expression).ok();
        self.compiled.get_or_init(expression).as_ref()
    }

    /// Whether digits may have separators between them, which may be a line's end.
    fn has_separators(&self) -> bool {
        self.expression.contains(' ')
    }

    /// Whether a match may be the part of a number before a line's end, since no check says where it ends.
    fn may_continue(&self, found: &str) -> bool {
        let digits = found.chars().filter(|c| c.is_numeric()).count();
        self.name == PHONE_NUMBER && digits < WHOLE_PHONE_NUMBER
    }

    /// All matches in the text's order, with their places in the original.
    fn find_all(&'static self, expression: &Regex, plain: &Plain<'_>) -> Vec<Match> {
        let (mut at, text, mut found) = (0, &*plain.text, Vec::new());
        while let Some(candidate) = expression.find_at(text, at) {
            let range = candidate.range();
            if let Some(end) = self.accepted_end(expression, plain, &range) {
                found.push(Match {
                    range: plain.original(&(range.start..end)),
                    name: &self.name,
                });
                at = end;
            } else if range.len() > MAX_RETRIED {
                at = range.end;
            } else {
                at = range.start + text[range.start..].chars().next().map_or(1, char::len_utf8);
            }
        }
        found
    }

    /// Where a candidate ends that stands for itself and passes the check; a part at its end may belong to what follows.
    fn accepted_end(
        &self,
        expression: &Regex,
        plain: &Plain<'_>,
        range: &Range<usize>,
    ) -> Option<usize> {
        let text = &*plain.text;
        let (before, candidate) = (&text[..range.start], &text[range.clone()]);
        if self.continues(before.chars().rev(), candidate, candidate.chars().next())
            && !plain.is_divided(range.start)
            && !ends_in_escape(before)
        {
            return None;
        }
        let shortest = match candidate.len() {
            ..=MAX_RETRIED => 1,
            length => length,
        };
        let is_accepted = |length: &usize| {
            text.is_char_boundary(range.start + length) && {
                let (part, rest) = text[range.start..].split_at(*length);
                (!self.continues(rest.chars(), part, part.chars().next_back())
                    || plain.is_divided(range.start + length))
                    && (*length == candidate.len()
                        || expression
                            .find(part)
                            .is_some_and(|found| found.len() == *length))
                    && checks::is_valid(&self.name, &part.to_ascii_uppercase())
            }
        };
        let length = (shortest..=candidate.len()).rev().find(is_accepted)?;
        Some(range.start + length)
    }

    /// Whether a match is a part of the word or number beside it, which may be a word of letters for some patterns.
    fn continues(
        &self,
        next: impl Iterator<Item = char> + Clone,
        found: &str,
        edge: Option<char>,
    ) -> bool {
        continues(next.clone(), found, edge) && !(self.touches_words && is_word(next))
    }
}

/// Whether a text ends in a character that is no letter or digit, as URLs or mails write it: `%22`, `%2522` or `=3D`.
fn ends_in_escape(text: &str) -> bool {
    let place = text.len().saturating_sub(2);
    let Some((rest, digits)) = text.split_at_checked(place) else {
        return false;
    };
    let is_number = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let code = u8::from_str_radix(digits, 16).unwrap_or(b'0');
    // `id=20` is hardly a mail's space.
    let is_of_mail = || rest.ends_with('=') && !digits.bytes().all(|digit| digit.is_ascii_digit());
    is_number
        && !code.is_ascii_alphanumeric()
        && (rest.trim_end_matches("25").ends_with('%') || is_of_mail())
}

/// Whether characters begin with a word of letters only.
fn is_word(characters: impl Iterator<Item = char>) -> bool {
    let word: Vec<char> = characters
        .take(MAX_WORD + 1)
        .take_while(|c| is_joined(*c))
        .collect();
    word.len() <= MAX_WORD && word.iter().all(|c| c.is_alphabetic())
}

/// Whether the characters next to a match belong to the same word or number: a letter or digit, or after a digit at the
/// match's `edge` a hyphen or point with another digit, unless other separators divide the match's digits. In scripts
/// without spaces, letters are no sign of that.
fn continues(mut next: impl Iterator<Item = char>, found: &str, edge: Option<char>) -> bool {
    if !edge.is_some_and(char::is_alphanumeric) {
        return false;
    }
    match next.next() {
        Some(separator @ ('-' | '.')) => {
            edge.is_some_and(|edge| edge.is_ascii_digit())
                && next.next().is_some_and(|next| next.is_ascii_digit())
                && (found.contains(separator) || found.chars().all(char::is_alphanumeric))
        }
        Some(next) => is_joined(next),
        None => false,
    }
}

/// Letters and digits that belong to the word beside them. Digits of other scripts are in ASCII here, and raised or circled
/// ones are marks.
fn is_joined(character: char) -> bool {
    character.is_ascii_digit() || character.is_alphabetic() && !is_unspaced(character)
}

/// Letters of scripts that write no spaces between words, or join particles: Thai, Lao, Myanmar, Khmer, Hangul, kana, Han.
fn is_unspaced(letter: char) -> bool {
    matches!(
        letter,
        '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1100}'..='\u{11ff}' | '\u{1780}'..='\u{17ff}'
            | '\u{2e80}'..='\u{a4cf}' | '\u{ac00}'..='\u{d7ff}' | '\u{f900}'..='\u{faff}' | '\u{ff66}'..='\u{ffdc}'
            | '\u{20000}'..='\u{3ffff}'
    )
}
