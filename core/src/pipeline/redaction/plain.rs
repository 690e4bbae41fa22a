//! Texts as patterns read them: with the digits, spaces and hyphens of ASCII, and without invisible characters.

use std::{borrow::Cow, ops::Range};

/// Digits zero of scripts that have digits of their own; the other nine follow.
const ZEROS: &str = "٠۰߀०০੦૦୦௦౦೦൦෦๐໐༠၀႐០᠐᥆᧐᪀᪐᭐᮰᱀᱐꘠꣐꤀꧐꧰꩐꯰０𐒠𐴰𑁦𑃰𑄶𑇐𑋰𑑐𑓐𑙐𑛀𑜰𑣠𑥐𑱐𑵐𑶠𖩠𖫀𖭐𝟎𝟘𝟢𝟬𝟶𞅀𞋰𞓰𞥐🯰";

/// How spaces, hyphens and line ends in a row are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Separators {
    /// One by one. Dashes and line ends divide numbers.
    AsWritten,
    /// Next to a digit, several, a dash or a line's end as one hyphen or space, since programs and people break numbers.
    Joined,
}

/// A text for patterns.
pub struct Plain<'a> {
    pub text: Cow<'a, str>,
    /// The parts that differ from the original, in the text's order.
    pub changes: Vec<Change>,
}

/// Characters of the original in whose place is one in ASCII, or none.
pub struct Change {
    /// Its bytes in [`Plain::text`].
    plain: Range<usize>,
    /// The end of the characters in the original.
    end: usize,
}

impl<'a> Plain<'a> {
    pub fn of(text: &'a str, separators: Separators) -> Self {
        let (mut plain, mut changes) = (String::new(), Vec::new());
        let (mut done, mut at, mut row_end) = (0, 0, 0);
        while let Some(c) = text[at..].chars().next() {
            let mut changed = None;
            let may_join = !c.is_alphanumeric() || is_invisible(c);
            if separators == Separators::Joined && at >= row_end && may_join {
                let row = Row::of(&text[at..]);
                row_end = at + row.length;
                changed = row.joined(&text[..at], &text[row_end..]);
                if is_form_space(&text[..at], &text[at..]) {
                    changed = Some((1, Some(' ')));
                }
            }
            if !c.is_ascii_alphanumeric() {
                changed = changed.or_else(|| read(&text[at..]));
            }
            let Some((length, read)) = changed else {
                at += c.len_utf8();
                continue;
            };
            plain.push_str(&text[done..at]);
            let start = plain.len();
            plain.extend(read);
            at += length;
            done = at;
            changes.push(Change {
                plain: start..plain.len(),
                end: at,
            });
        }
        let text = match changes.is_empty() {
            true => Cow::Borrowed(text),
            false => Cow::Owned(plain + &text[done..]),
        };
        Self { text, changes }
    }

    /// Whether invisible characters were before this place.
    pub fn is_divided(&self, place: usize) -> bool {
        let is_before = |change: &Change| change.plain.end < place;
        self.changes[self.changes.partition_point(is_before)..]
            .iter()
            .take_while(|change| change.plain.start <= place)
            .any(|change| change.plain == (place..place))
    }

    /// A place in the original, without invisible characters at its ends.
    pub fn original(&self, range: &Range<usize>) -> Range<usize> {
        let original = |count: usize, place: usize| match self.changes[..count].last() {
            Some(Change { plain, end }) => end + (place - plain.end),
            None => place,
        };
        let starts = |change: &Change| change.plain.end <= range.start;
        let ends = |change: &Change| change.plain.start < range.end;
        let start = original(self.changes.partition_point(starts), range.start);
        start..original(self.changes.partition_point(ends), range.end)
    }
}

/// What is read in place of the first characters, with their length; `None` if they stay.
fn read(text: &str) -> Option<(usize, Option<char>)> {
    let first = text.chars().next()?;
    let (length, first) = escaped(text).unwrap_or((first.len_utf8(), first));
    match first {
        // JSON, and other sources of programs.
        '\\' if is_break(text) => Some((2, Some('\n'))),
        // A terminal's colours.
        '\u{1b}' if text[length..].starts_with('[') => {
            let end = text[length + 1..].find(|c| matches!(c, '@'..='~'));
            Some((end.map_or(length, |end| length + end + 2), None))
        }
        _ if is_invisible(first) => Some((length, None)),
        _ if length > first.len_utf8() => Some((length, ascii(first).or(Some(first)))),
        _ => ascii(first).map(|read| (length, Some(read))),
    }
}

/// A character that JSON, Python or HTML writes as its number, or the `@` or `+` of a URL; and the length of that form.
fn escaped(text: &str) -> Option<(usize, char)> {
    const LONGEST_ENTITY: usize = "&#x10ffff;".len();
    let number = |digits: &str, radix: u32| {
        let is_digit = |digit: u8| char::from(digit).is_digit(radix);
        let is_number = !digits.is_empty() && digits.bytes().all(is_digit);
        is_number.then(|| u32::from_str_radix(digits, radix).ok())?
    };
    let (length, code) = match text.as_bytes() {
        [b'\\', b'u', ..] => (6, number(text.get(2..6)?, 16)?),
        [b'\\', b'x', ..] => (4, number(text.get(2..4)?, 16)?),
        [b'%', b'4', b'0', ..] => return Some((3, '@')),
        [b'%', b'2', b'B' | b'b', ..] => return Some((3, '+')),
        [b'&', ..] => {
            let end = text
                .bytes()
                .take(LONGEST_ENTITY)
                .position(|byte| byte == b';')?;
            let code = match &text[1..end] {
                "nbsp" => 0xa0,
                entity => {
                    let digits = entity.strip_prefix('#')?;
                    match digits.strip_prefix(['x', 'X']) {
                        Some(digits) => number(digits, 16)?,
                        None => number(digits, 10)?,
                    }
                }
            };
            (end + 1, code)
        }
        _ => return None,
    };
    // Half of a character beyond 16 bits.
    let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    Some((length, character))
}

/// Spaces, hyphens, dashes and line ends in a row, with marks of a quotation behind a line's end.
struct Row {
    length: usize,
    breaks: usize,
    /// The space or hyphen that stands for all.
    read: char,
    is_one: bool,
}

impl Row {
    fn of(text: &str) -> Self {
        let (mut length, mut breaks, mut read) = (0, 0, ' ');
        while let Some(c) = text[length..].chars().next() {
            let (size, c) = escaped(&text[length..]).unwrap_or((c.len_utf8(), c));
            match c {
                '\\' if is_break(&text[length..]) => {
                    length += 1;
                    breaks += usize::from(text[length..].starts_with('n'));
                }
                '\r' if text[length..].starts_with("\r\n") => {}
                '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}' => breaks += 1,
                '>' | '|' if breaks > 0 => {}
                '%' if text[length..].starts_with("%20") => length += 2,
                '-' | '\u{2010}'..='\u{2015}' | '\u{2212}' | '\u{fe58}' | '\u{fe63}' | '－' => {
                    read = '-';
                }
                _ if c.is_whitespace() || is_invisible(c) => {}
                _ => break,
            }
            length += size;
        }
        Self {
            length,
            breaks,
            read,
            is_one: text[..length].chars().eq([read]),
        }
    }

    /// Its length and the character that stands for it, unless it is that already, ends a paragraph or has no digit beside it.
    fn joined(&self, before: &str, after: &str) -> Option<(usize, Option<char>)> {
        let beside = [before.chars().next_back(), after.chars().next()];
        let is_digit = |c: &char| c.is_ascii_digit() || digit(*c).is_some();
        let is_kept = self.length == 0 || self.is_one || self.breaks > 1;
        let has_digit = || beside.iter().flatten().any(is_digit);
        (!is_kept && has_digit()).then_some((self.length, Some(self.read)))
    }
}

/// Whether a plus stands for a space, as in a form (`4111+1111+1111+1111`), and not at the beginning of a phone number.
fn is_form_space(before: &str, after: &str) -> bool {
    /// Digits or letters between separators.
    const MAX_GROUP: usize = 7;
    let Some(rest) = after.strip_prefix('+') else {
        return false;
    };
    let is_group = |c: char| c.is_ascii_alphanumeric();
    let end = rest.trim_start_matches(is_group);
    before.ends_with(is_group)
        && (1..=MAX_GROUP).contains(&(rest.len() - end.len()))
        && !end.starts_with([' ', '-', '/', '('])
}

/// Whether a text begins with a line's end or tab as it is written in programs.
fn is_break(text: &str) -> bool {
    matches!(text.as_bytes(), [b'\\', b'n' | b'r' | b't', ..])
}

/// The character in ASCII for a space that does not break or has another width, a hyphen, a wide letter, or a digit.
/// Dashes stay: they stand between numbers.
fn ascii(character: char) -> Option<char> {
    match character {
        '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => Some(' '),
        '\u{2010}' | '\u{2011}' => Some('-'),
        'Ａ'..='Ｚ' | 'ａ'..='ｚ' | '＋' | '－' | '．' | '＠' => {
            char::from_u32(u32::from(character) - 0xfee0)
        }
        _ => digit(character),
    }
}

/// A digit in another script.
fn digit(character: char) -> Option<char> {
    if character.is_ascii() || !character.is_numeric() {
        return None;
    }
    let value = |zero: char| u32::from(character).checked_sub(u32::from(zero));
    let value = ZEROS.chars().filter_map(value).find(|value| *value < 10)?;
    char::from_digit(value, 10)
}

/// Control characters, and `Default_Ignorable_Code_Point`: soft hyphens, joiners, marks of direction, variation selectors.
fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}'
    ) || character.is_control() && !character.is_whitespace()
}
