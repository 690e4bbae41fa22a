//! A text in sentences, and a text again of their translations, with the spacing between them kept.

use unicode_segmentation::UnicodeSegmentation;

/// After these a sentence goes on, whatever follows. In small letters, for many languages at once: to miss an end
/// costs less than to cut a sentence in two.
const ABBREVIATIONS: [&str; 60] = [
    "adj", "adm", "apt", "art", "ave", "bspw", "bzw", "ca", "cap", "capt", "cf", "cit", "co", "col", "dept",
    "dr", "dra", "ed", "eds", "eg", "e.g", "etc", "ex", "exa", "exmo", "fig", "gen", "gov", "hon", "ie",
    "i.e", "inc", "jr", "lt", "ltd", "mlle", "mm", "mme", "mr", "mrs", "ms", "mt", "no", "nr", "núm", "op",
    "pag", "pág", "prof", "profa", "rev", "sgt", "sr", "sra", "srta", "st", "tel", "usw", "vol", "vs",
];

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// What is translated, without white space around it.
    Sentence(&'a str),
    /// White space, which stays as it is; nothing where two sentences touch.
    Space(&'a str),
}

/// The parts of a text: put one after the other they are the text again. Lines end sentences.
pub(super) fn split(text: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    for line in text.split_inclusive(['\n', '\r', '\u{2028}', '\u{2029}']) {
        for sentence in sentences(line) {
            push(&mut parts, sentence);
        }
    }
    parts
}

/// A text as one sentence, with the white space around it.
pub(super) fn whole(text: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    push(&mut parts, text);
    parts
}

fn push<'a>(parts: &mut Vec<Part<'a>>, piece: &'a str) {
    let core = piece.trim();
    let before = piece.len() - piece.trim_start().len();
    let space = |space: &'a str| (!space.is_empty()).then_some(Part::Space(space));
    if core.is_empty() {
        parts.extend(space(piece));
        return;
    }
    if let (Some(Part::Sentence(_)), 0) = (parts.last(), before) {
        parts.push(Part::Space(""));
    }
    parts.extend(space(&piece[..before]));
    parts.push(Part::Sentence(core));
    parts.extend(space(&piece[before + core.len()..]));
}

/// The sentences of a line, each with the white space after it.
fn sentences(line: &str) -> Vec<&str> {
    let (mut sentences, mut begin) = (Vec::new(), 0);
    for (place, piece) in line.split_sentence_bound_indices() {
        let end = place + piece.len();
        if end == line.len() || !goes_on(&line[begin..end], &line[end..]) {
            sentences.push(&line[begin..end]);
            begin = end;
        }
    }
    sentences
}

/// Whether what looks like a sentence ends with an abbreviation, an initial or a number with a dot, or quotes one.
fn goes_on(sentence: &str, next: &str) -> bool {
    let sentence = sentence.trim_end();
    if sentence.ends_with(['"', '”', '’', '»', '\'']) && next.starts_with(char::is_lowercase) {
        return true;
    }
    let Some(sentence) = sentence.strip_suffix('.') else { return false };
    let word =
        sentence.rsplit(|letter: char| letter.is_whitespace() || letter == '(').next().unwrap_or_default();
    let is_alone = word.len() == sentence.trim_start().len();
    let is_initial = word.chars().count() == 1 && word.chars().all(char::is_uppercase);
    let is_number = is_alone && !word.is_empty() && word.chars().all(|letter| letter.is_ascii_digit());
    is_initial || is_number || ABBREVIATIONS.contains(&word.to_lowercase().as_str())
}

/// The two halves of a sentence that is too long, cut at the white space nearest its middle; nothing for a single
/// word.
pub(super) fn halves(sentence: &str) -> Option<(&str, &str)> {
    let middle = sentence.len() / 2;
    let spaces = sentence.char_indices().filter(|(_, letter)| letter.is_whitespace()).map(|(place, _)| place);
    let cut = spaces.min_by_key(|place| place.abs_diff(middle))?;
    let (before, after) = sentence.split_at(cut);
    let (before, after) = (before.trim(), after.trim());
    (!before.is_empty() && !after.is_empty()).then_some((before, after))
}

/// Puts a text together of its parts, sentences replaced by `translations` in their order.
///
/// Where two sentences touch, a space is put between them if the target's words need one.
pub(super) fn join(parts: &[Part<'_>], translations: &[String], needs_space: bool) -> String {
    let mut translations = translations.iter();
    let mut text = String::new();
    for part in parts {
        match part {
            Part::Sentence(_) => text.push_str(translations.next().map_or("", |sentence| sentence.trim())),
            Part::Space("") if needs_space => text.push(' '),
            Part::Space(space) => text.push_str(space),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sentences in brackets.
    fn shown(text: &str) -> String {
        let parts = split(text);
        let again: String = parts
            .iter()
            .map(|part| match part {
                Part::Sentence(text) | Part::Space(text) => *text,
            })
            .collect();
        assert_eq!(again, text, "nothing is lost");
        let sentences: Vec<String> = parts
            .iter()
            .filter_map(|part| match part {
                Part::Sentence(sentence) => Some(format!("[{sentence}]")),
                Part::Space(_) => None,
            })
            .collect();
        join(&parts, &sentences, false)
    }

    #[test]
    fn sentences_are_found_and_spacing_is_kept() {
        let cases = [
            ("One. Two!  Three?", "[One.] [Two!]  [Three?]"),
            ("  One\n\n\tTwo \r\n", "  [One]\n\n\t[Two] \r\n"),
            ("Mr. Smith met Dr. Who. They left.", "[Mr. Smith met Dr. Who.] [They left.]"),
            ("J. R. R. Tolkien wrote it. Yes.", "[J. R. R. Tolkien wrote it.] [Yes.]"),
            ("It costs 3.50 euros, e.g. here. Now.", "[It costs 3.50 euros, e.g. here.] [Now.]"),
            ("1. First thing. 2. Second.", "[1. First thing.] [2. Second.]"),
            ("今日は。元気ですか？はい", "[今日は。][元気ですか？][はい]"),
            ("\"Stop!\" he said. Then?", "[\"Stop!\" he said.] [Then?]"),
            ("a\u{2029}b", "[a]\u{2029}[b]"),
            ("", ""),
            (" \n ", " \n "),
        ];
        for (text, expected) in cases {
            assert_eq!(shown(text), expected, "{text:?}");
        }
    }

    #[test]
    fn sentences_that_touch_are_parted_where_the_target_needs_it() {
        let parts = split("今日は。元気");
        let translations = ["Hello.".to_owned(), "Fine".to_owned()];
        assert_eq!(join(&parts, &translations, true), "Hello. Fine");
        assert_eq!(join(&parts, &translations, false), "Hello.Fine");
    }

    proptest::proptest! {
        #[test]
        fn a_text_in_parts_is_the_text_again(text in proptest::prelude::any::<String>(), words in "([a-zA-Z]{1,3}[.!? \n。]{0,2}){0,40}") {
            for text in [text, words] {
                shown(&text);
                let sentences: Vec<String> = split(&text)
                    .iter()
                    .filter_map(|part| match part {
                        Part::Sentence(sentence) => Some((*sentence).to_owned()),
                        Part::Space(_) => None,
                    })
                    .collect();
                assert_eq!(join(&split(&text), &sentences, false), text);
                if let Some((before, after)) = halves(text.trim()) {
                    assert!(text.contains(before) && text.contains(after));
                }
            }
        }
    }

    #[test]
    fn a_long_sentence_is_cut_between_words() {
        assert_eq!(halves("one two three four"), Some(("one two", "three four")));
        assert_eq!(halves("a verylongwordthatgoeson"), Some(("a", "verylongwordthatgoeson")));
        assert_eq!(halves("word"), None);
        assert_eq!(halves("ééé ééé"), Some(("ééé", "ééé")));
    }

    #[test]
    fn a_million_characters_take_no_time() {
        let started = std::time::Instant::now();
        let text = "The cat sits on the mat. ".repeat(40_000);
        assert_eq!(split(&text).len(), 80_000);
        assert_eq!(split(&"x".repeat(1_000_000)).len(), 1);
        assert!(started.elapsed().as_secs() < 5, "{:?}", started.elapsed());
    }
}
