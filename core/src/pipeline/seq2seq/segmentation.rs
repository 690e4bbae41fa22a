//! Splits a text into sentences, and joins their translations with the original spacing.

use unicode_segmentation::UnicodeSegmentation;

/// Abbreviations from several languages, in lower case, that do not end a sentence: a missed end costs less than
/// a sentence cut in two.
const ABBREVIATIONS: &str = include_str!("abbreviations.txt");

/// A part of a text: a sentence or white space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment<S> {
    /// A sentence, without white space around it.
    Sentence(S),
    /// White space; empty between adjacent sentences.
    Space(S),
}

/// Splits a text into segments that add up to it. Line breaks end sentences. If there are more than `max` sentences,
/// reading stops after the first excess one.
pub fn split(text: &str, max: usize) -> Vec<Segment<&str>> {
    let (mut segments, mut found) = (Vec::new(), 0);
    for line in text.split_inclusive(['\n', '\r', '\u{2028}', '\u{2029}']) {
        for piece in sentences(line) {
            found += usize::from(push(&mut segments, piece));
            if found > max {
                return segments;
            }
        }
    }
    segments
}

/// A text as one sentence, with the white space around it.
pub fn whole(text: &str) -> Vec<Segment<&str>> {
    let mut segments = Vec::new();
    push(&mut segments, text);
    segments
}

/// Appends a piece; returns whether it is more than white space.
fn push<'a>(segments: &mut Vec<Segment<&'a str>>, piece: &'a str) -> bool {
    let core = piece.trim();
    let before = piece.len() - piece.trim_start().len();
    let space = |space: &'a str| (!space.is_empty()).then_some(Segment::Space(space));
    if core.is_empty() {
        segments.extend(space(piece));
        return false;
    }
    if let (Some(Segment::Sentence(_)), 0) = (segments.last(), before) {
        segments.push(Segment::Space(""));
    }
    segments.extend(space(&piece[..before]));
    segments.push(Segment::Sentence(core));
    segments.extend(space(&piece[before + core.len()..]));
    true
}

/// A line's sentences, each with the white space after it.
fn sentences(line: &str) -> impl Iterator<Item = &str> {
    let mut begin = 0;
    line.split_sentence_bound_indices()
        .filter_map(move |(index, piece)| {
            let end = index + piece.len();
            let is_end = end == line.len() || !continues(&line[begin..end], &line[end..]);
            is_end.then(|| &line[std::mem::replace(&mut begin, end)..end])
        })
}

/// Whether an apparent sentence ends inside of a word, or with an abbreviation, an initial, a list number or a quotation,
/// and continues.
fn continues(sentence: &str, next: &str) -> bool {
    if is_inside_of_a_word(sentence, next) {
        return true;
    }
    let sentence = sentence.trim_end();
    if sentence.ends_with(['"', '”', '’', '»', '\'']) && next.starts_with(char::is_lowercase) {
        return true;
    }
    let Some(sentence) = sentence.strip_suffix('.') else {
        return false;
    };
    let word = sentence
        .rsplit(|letter: char| letter.is_whitespace() || letter == '(')
        .next()
        .unwrap_or_default();
    let is_alone = word.len() == sentence.trim_start().len();
    let is_letter = |part: &str| part.chars().count() == 1 && part.chars().all(char::is_alphabetic);
    let is_initial = is_letter(word) && word.chars().all(char::is_uppercase);
    // Such as `U.S.` and `p.m.`.
    let is_initials = word.contains('.') && word.split('.').all(is_letter);
    let is_number =
        is_alone && !word.is_empty() && word.chars().all(|letter| letter.is_ascii_digit());
    let word = word.to_lowercase();
    let is_abbreviation = ABBREVIATIONS.split_whitespace().any(|known| known == word);
    is_initial || is_initials || is_number || is_abbreviation
}

/// Whether a full stop or another mark is a part of a word, such as of a web address.
fn is_inside_of_a_word(sentence: &str, next: &str) -> bool {
    /// The first character of writing systems without spaces between words (CJK Radicals Supplement).
    const WITHOUT_SPACES: char = '\u{2e80}';
    let marks = sentence.trim_end_matches(['"', '”', '’', '»', '\'', ')', ']']);
    marks.ends_with(['.', '!', '?'])
        && next.starts_with(|letter: char| letter < WITHOUT_SPACES && !letter.is_whitespace())
}

/// Halves a sentence that is too long, at the white space nearest to its middle; `None` for a single word.
pub fn halves(sentence: &str) -> Option<(&str, &str)> {
    let middle = sentence.len() / 2;
    let spaces = sentence
        .char_indices()
        .filter(|(_, letter)| letter.is_whitespace())
        .map(|(index, _)| index);
    let cut = spaces.min_by_key(|index| index.abs_diff(middle))?;
    let (before, after) = sentence.split_at(cut);
    let (before, after) = (before.trim(), after.trim());
    (!before.is_empty() && !after.is_empty()).then_some((before, after))
}

/// Joins a text's segments, with its sentences replaced by `translations` in order, and with `between` between adjacent
/// sentences.
pub fn join<S: AsRef<str>>(
    segments: &[Segment<S>],
    translations: &[String],
    between: &str,
) -> String {
    let mut translations = translations.iter();
    let mut text = String::new();
    for segment in segments {
        match segment {
            Segment::Sentence(_) => {
                text.push_str(translations.next().map_or("", |sentence| sentence.trim()))
            }
            Segment::Space(space) if space.as_ref().is_empty() => text.push_str(between),
            Segment::Space(space) => text.push_str(space.as_ref()),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text with its sentences in brackets.
    fn shown(text: &str) -> String {
        let segments = split(text, usize::MAX);
        let again: String = segments
            .iter()
            .map(|part| match part {
                Segment::Sentence(text) | Segment::Space(text) => *text,
            })
            .collect();
        assert_eq!(again, text, "segments add up to the text");
        let sentences: Vec<String> = segments
            .iter()
            .filter_map(|part| match part {
                Segment::Sentence(sentence) => Some(format!("[{sentence}]")),
                Segment::Space(_) => None,
            })
            .collect();
        join(&segments, &sentences, "")
    }

    #[test]
    fn sentences_are_found_and_spacing_is_kept() {
        let cases = [
            ("One. Two!  Three?", "[One.] [Two!]  [Three?]"),
            ("  One\n\n\tTwo \r\n", "  [One]\n\n\t[Two] \r\n"),
            (
                "Mr. Smith met Dr. Who. They left.",
                "[Mr. Smith met Dr. Who.] [They left.]",
            ),
            (
                "J. R. R. Tolkien wrote it. Yes.",
                "[J. R. R. Tolkien wrote it.] [Yes.]",
            ),
            (
                "It costs 3.50 euros, e.g. here. Now.",
                "[It costs 3.50 euros, e.g. here.] [Now.]",
            ),
            (
                "1. First thing. 2. Second.",
                "[1. First thing.] [2. Second.]",
            ),
            ("今日は。元気ですか？はい", "[今日は。][元気ですか？][はい]"),
            ("\"Stop!\" he said. Then?", "[\"Stop!\" he said.] [Then?]"),
            ("a\u{2029}b", "[a]\u{2029}[b]"),
            (
                "See http://example.com/a?b=c&d=é!e. Then?",
                "[See http://example.com/a?b=c&d=é!e.] [Then?]",
            ),
            ("Is it (a?b)c? Yes!No", "[Is it (a?b)c?] [Yes!No]"),
            ("元気?はい", "[元気?][はい]"),
            (
                "The U.S. Army is big. At 5 p.m. Monday.",
                "[The U.S. Army is big.] [At 5 p.m. Monday.]",
            ),
            (
                "if (a != b) return; is 5!=120? Yes.",
                "[if (a != b) return; is 5!=120?] [Yes.]",
            ),
            ("", ""),
            (" \n ", " \n "),
        ];
        for (text, expected) in cases {
            assert_eq!(shown(text), expected, "{text:?}");
        }
    }

    #[test]
    fn adjacent_sentences_are_separated_if_the_target_needs_it() {
        let segments = split("今日は。元気", usize::MAX);
        let translations = ["Hello.".to_owned(), "Fine".to_owned()];
        assert_eq!(join(&segments, &translations, " "), "Hello. Fine");
        assert_eq!(join(&segments, &translations, ""), "Hello.Fine");
    }

    proptest::proptest! {
        #[test]
        fn segments_add_up_to_the_text(text in proptest::prelude::any::<String>(), words in "([a-zA-Z]{1,3}[.!? \n。]{0,2}){0,40}") {
            for text in [text, words] {
                shown(&text);
                let sentences: Vec<String> = split(&text, usize::MAX)
                    .iter()
                    .filter_map(|part| match part {
                        Segment::Sentence(sentence) => Some((*sentence).to_owned()),
                        Segment::Space(_) => None,
                    })
                    .collect();
                assert_eq!(join(&split(&text, usize::MAX), &sentences, ""), text);
                if let Some((before, after)) = halves(text.trim()) {
                    assert!(text.contains(before) && text.contains(after));
                }
            }
        }
    }

    #[test]
    fn a_long_sentence_is_cut_between_words() {
        assert_eq!(
            halves("one two three four"),
            Some(("one two", "three four"))
        );
        assert_eq!(
            halves("a verylongwordthatgoeson"),
            Some(("a", "verylongwordthatgoeson"))
        );
        assert_eq!(halves("word"), None);
        assert_eq!(halves("ééé ééé"), Some(("ééé", "ééé")));
    }

    #[test]
    fn a_million_characters_are_split_in_seconds() {
        let started = std::time::Instant::now();
        let text = "The cat sits on the mat. ".repeat(40_000);
        assert_eq!(split(&text, usize::MAX).len(), 80_000);
        assert_eq!(split(&"x".repeat(1_000_000), usize::MAX).len(), 1);
        assert_eq!(
            split(&text, 2).len(),
            6,
            "two sentences, the next one, and the space after each"
        );
        assert!(started.elapsed().as_secs() < 5, "{:?}", started.elapsed());
    }
}
