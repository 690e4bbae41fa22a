//! Keeps what a vocabulary lacks, such as e-mail addresses and emoji, which a Bergamot model would drop or replace.
//!
//! Typographic characters become their ASCII forms. Other unknown words become numbers, which these models copy, and
//! return in place of the numbers.

use std::{collections::BTreeMap, ops::Range, sync::LazyLock};

use regex::Regex;

use super::segmentation::Segment;

/// Texts that are kept as a whole if a character in them is unknown: placeholders, tags and code.
static UNITS: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"[$#%]?\{+[^{}]*\}+|</?[A-Za-z!][^<>]*>|`+[^`]+`+").ok());

/// A sentence with unknown characters, as the model reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readable<'a> {
    /// Text that is copied before and after the part that the model reads.
    pub around: [&'a str; 2],
    /// The part that the model reads; `None` if it has nothing to read.
    pub read: Option<Masked>,
}

/// A text in which numbers stand for its unknown words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Masked {
    pub text: String,
    kept: Vec<Kept>,
    /// The same text, divided into what the model can read and what is copied, for translations that lack a number.
    pub fragments: Vec<Segment<String>>,
}

/// An unknown word.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    /// Stands for it in the masked text.
    number: String,
    text: String,
    /// Whether a space was added before and after the number.
    is_spaced: [bool; 2],
}

impl Masked {
    /// Replaces the numbers in a translation; `None` if it does not have each of them once.
    pub fn restore(&self, translation: &str) -> Option<String> {
        let mut places = Vec::new();
        for kept in &self.kept {
            let (start, _) = translation.match_indices(&kept.number).next()?;
            let (before, after) = translation.split_at(start);
            let after = &after[kept.number.len()..];
            let is_word = before.ends_with(char::is_alphanumeric)
                || after.starts_with(char::is_alphanumeric)
                || after.contains(&kept.number);
            if is_word {
                return None;
            }
            let [is_before, is_after] = kept.is_spaced;
            let from = start - usize::from(is_before && before.ends_with(' '));
            let space = usize::from(is_after && after.starts_with(' '));
            let to = start + kept.number.len() + space;
            places.push((from..to, &kept.text));
        }
        places.sort_by_key(|(range, _)| range.start);
        let (mut restored, mut end) = (String::new(), 0);
        for (range, text) in places {
            // Neighbours may share a removed space.
            restored.push_str(translation.get(end..range.start).unwrap_or_default());
            restored.push_str(text);
            end = range.end;
        }
        restored.push_str(translation.get(end..)?);
        Some(restored)
    }
}

/// Makes a sentence readable. `unknown` are the bytes of its characters that have no token, and `is_known` tells whether a
/// text has tokens for all of its characters.
pub fn readable<'a>(
    sentence: &'a str,
    unknown: &[Range<usize>],
    is_known: impl Fn(&str) -> bool,
) -> Readable<'a> {
    let mut forms = BTreeMap::new();
    let mut form = |letter| {
        *forms
            .entry(letter)
            .or_insert_with(|| Form::of(letter, &is_known))
    };
    let characters: Vec<Character> = sentence
        .char_indices()
        .map(|(start, letter)| Character {
            start,
            letter,
            form: match unknown.iter().any(|range| range.contains(&start)) {
                true => form(letter),
                false => Form::Known,
            },
        })
        .collect();
    let mut kept = kept_ranges(sentence, &characters);
    let has_word = |range: Range<usize>| within(&characters, &range).iter().any(Character::is_word);
    merge(&mut kept, has_word);
    // Symbols and tags at the ends are no part of the sentence.
    let is_beside = |range: &Range<usize>| {
        let text = &sentence[range.clone()];
        text.starts_with('<') || !text.contains(char::is_alphanumeric)
    };
    let mut read = 0..sentence.len();
    if let Some(first) = kept.first().filter(|first| is_beside(first))
        && !has_word(0..first.start)
    {
        read.start = first.end;
        kept.remove(0);
    }
    if let Some(last) = kept.last().filter(|last| is_beside(last))
        && !has_word(last.end..sentence.len())
    {
        read.end = last.start;
        kept.pop();
    }
    let is_kept = |start: usize| kept.iter().any(|range| range.contains(&start));
    let is_readable = within(&characters, &read).iter().any(|character| {
        character.letter.is_alphabetic()
            && character.form == Form::Known
            && !is_kept(character.start)
    });
    if !is_readable {
        return Readable {
            around: [sentence, ""],
            read: None,
        };
    }
    let core = &sentence[read.clone()];
    read.start += core.len() - core.trim_start().len();
    read.end -= core.len() - core.trim_end().len();
    Readable {
        around: [&sentence[..read.start], &sentence[read.end..]],
        read: Some(masked(sentence, read, &kept, &characters)),
    }
}

/// How the model reads a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Known,
    /// In ASCII.
    Replaced(&'static str),
    /// An unknown capital, which the model was trained to read in its context.
    Capital,
    /// Not at all.
    Unknown,
}

#[derive(Debug)]
struct Character {
    start: usize,
    letter: char,
    form: Form,
}

/// The characters in a range of bytes.
fn within<'c>(characters: &'c [Character], range: &Range<usize>) -> &'c [Character] {
    let place = |byte: usize| characters.partition_point(|character| character.start < byte);
    &characters[place(range.start)..place(range.end)]
}

impl Form {
    /// The form of a character without a token.
    fn of(letter: char, is_known: impl Fn(&str) -> bool) -> Self {
        let is_capital = || letter.is_uppercase() && is_known(&letter.to_lowercase().to_string());
        match ascii(letter).filter(|ascii| is_known(ascii)) {
            Some(ascii) => Self::Replaced(ascii),
            None if is_capital() => Self::Capital,
            None => Self::Unknown,
        }
    }
}

impl Character {
    /// Whether the model reads it as a part of a word or number.
    fn is_word(&self) -> bool {
        self.form != Form::Unknown && self.letter.is_alphanumeric()
    }

    fn is_space(&self) -> bool {
        let is_spaced = matches!(self.form, Form::Replaced(ascii) if ascii.contains(' '));
        self.letter.is_whitespace() || is_spaced
    }

    /// Whether an unknown character belongs to the word around it, as `@` does and emoji do not.
    fn joins(&self) -> bool {
        let is_currency = matches!(self.letter, '¢'..='¥' | '\u{20a0}'..='\u{20cf}');
        self.letter.is_alphanumeric() || self.letter.is_ascii() || is_currency
    }
}

/// The ASCII form of a typographic character.
fn ascii(letter: char) -> Option<&'static str> {
    Some(match letter {
        '‘' | '’' | '‚' | '‛' | '‹' | '›' | 'ʼ' | '′' => "'",
        '“' | '”' | '„' | '‟' | '«' | '»' | '″' => "\"",
        '‐' | '‑' | '‒' | '–' | '−' => "-",
        '—' | '―' => " - ",
        '…' => "...",
        '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => " ",
        // Soft hyphen and word joiner.
        '\u{ad}' | '\u{2060}' => "",
        _ => return None,
    })
}

/// The words and other units that have unknown characters, in order.
fn kept_ranges(sentence: &str, characters: &[Character]) -> Vec<Range<usize>> {
    let has_unknown = |range: &Range<usize>| {
        within(characters, range)
            .iter()
            .any(|character| character.form == Form::Unknown)
    };
    let units = UNITS.as_ref().map(|units| units.find_iter(sentence));
    let units: Vec<Range<usize>> = units
        .into_iter()
        .flatten()
        .map(|unit| unit.range())
        .filter(has_unknown)
        .collect();
    let unit_at = |start: usize| {
        let next = units.partition_point(|unit| unit.end <= start);
        units.get(next).filter(|unit| unit.contains(&start))
    };
    let is_outside =
        |character: &&Character| !character.is_space() && unit_at(character.start).is_none();
    let mut kept: Vec<Range<usize>> = Vec::new();
    for (index, character) in characters.iter().enumerate() {
        let is_kept = kept
            .last()
            .is_some_and(|last| last.contains(&character.start));
        if character.form != Form::Unknown || is_kept {
            continue;
        }
        if let Some(unit) = unit_at(character.start) {
            kept.push(unit.clone());
            continue;
        }
        let (mut first, mut last) = (index, index);
        if character.joins() {
            let before = characters[..index].iter().rev().take_while(is_outside);
            first -= before.count();
            last += characters[index + 1..]
                .iter()
                .take_while(is_outside)
                .count();
            // Punctuation around a word is not a part of it.
            let is_own = |place: &usize| {
                characters[*place].form == Form::Unknown || characters[*place].is_word()
            };
            first = (first..index).find(is_own).unwrap_or(index);
            last = (index + 1..=last).rev().find(is_own).unwrap_or(index);
        }
        let end = characters
            .get(last + 1)
            .map_or(sentence.len(), |next| next.start);
        kept.push(characters[first].start..end);
    }
    kept
}

/// Joins neighbours that overlap or have no words between them.
fn merge(kept: &mut Vec<Range<usize>>, has_word: impl Fn(Range<usize>) -> bool) {
    let mut merged: Vec<Range<usize>> = Vec::new();
    for mut range in kept.drain(..) {
        while let Some(last) =
            merged.pop_if(|last| last.end >= range.start || !has_word(last.end..range.start))
        {
            range = last.start.min(range.start)..last.end.max(range.end);
        }
        merged.push(range);
    }
    *kept = merged;
}

/// Replaces kept texts by numbers, and typographic characters by their ASCII forms.
fn masked(
    sentence: &str,
    read: Range<usize>,
    kept: &[Range<usize>],
    characters: &[Character],
) -> Masked {
    let mut masked = Masked::default();
    let mut place = read.start;
    let mut numbers = numbers(sentence);
    for range in kept {
        masked.add_read(place..range.start, characters);
        let text = &sentence[range.clone()];
        let before = sentence[read.start..range.start].ends_with(char::is_alphanumeric);
        let after = sentence[range.end..read.end].starts_with(char::is_alphanumeric);
        let number = numbers.next().unwrap_or_default();
        for part in [
            if before { " " } else { "" },
            &number,
            if after { " " } else { "" },
        ] {
            masked.text.push_str(part);
        }
        masked.fragments.push(Segment::Space(text.to_owned()));
        masked.kept.push(Kept {
            number,
            text: text.to_owned(),
            is_spaced: [before, after],
        });
        place = range.end;
    }
    masked.add_read(place..read.end, characters);
    masked
}

impl Masked {
    /// Adds characters that the model reads.
    fn add_read(&mut self, range: Range<usize>, characters: &[Character]) {
        let mut text = String::new();
        for character in within(characters, &range) {
            match character.form {
                Form::Replaced(ascii) => text.push_str(ascii),
                _ => text.push(character.letter),
            }
        }
        self.text.push_str(&text);
        if !text.contains(char::is_alphanumeric) {
            self.fragments.push(Segment::Space(text));
            return;
        }
        let core = text.trim();
        let (before, after) = text.split_at(text.len() - text.trim_start().len());
        let space = |space: &str| Segment::Space(space.to_owned());
        self.fragments.extend([
            space(before),
            Segment::Sentence(core.to_owned()),
            space(&after[core.len()..]),
        ]);
    }
}

/// Numbers that a sentence does not contain.
fn numbers(sentence: &str) -> impl Iterator<Item = String> {
    // Of the placeholders that were compared, models copied numbers with three digits most often.
    let candidates = (0..900).map(|step| (631 + 113 * step) % 900 + 100);
    candidates
        .map(|number: u32| number.to_string())
        .filter(|number| !sentence.contains(number.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The forms of a text: what is copied before it, what the model reads, and what is copied after it.
    fn shown(sentence: &str) -> String {
        let (sentence, is_lost) = (sentence, |letter: char| {
            !letter.is_ascii() && letter != 'é' || "#<@\\^`{}~".contains(letter)
        });
        let lost: Vec<_> = sentence
            .char_indices()
            .filter(|(_, letter)| is_lost(*letter))
            .map(|(start, letter)| start..start + letter.len_utf8())
            .collect();
        let readable = readable(sentence, &lost, |text| !text.contains(is_lost));
        let [before, after] = readable.around;
        match readable.read {
            None => format!("{before}{after} (copied)"),
            Some(read) => {
                let text = read.text.clone();
                assert_eq!(
                    read.restore(&text)
                        .map(|text| text.replace(['"', '\''], "")),
                    Some(plain(
                        &sentence[before.len()..sentence.len() - after.len()],
                        &read
                    )),
                    "{sentence}"
                );
                format!("{before}[{text}]{after}")
            }
        }
    }

    /// The text without quotes, as the fragments give it.
    fn plain(sentence: &str, read: &Masked) -> String {
        let parts = read.fragments.iter().map(|part| {
            let (Segment::Sentence(text) | Segment::Space(text)) = part;
            text.as_str()
        });
        let text: String = parts.collect();
        assert_eq!(text.trim(), text, "{sentence}");
        text.replace(['"', '\''], "")
    }

    #[test]
    fn what_a_model_cannot_read_is_kept() {
        let texts = [
            "She said “yes” to him.",
            "It’s 5–6 pages — or so…",
            "Hello {name}, you have {count} new messages.",
            "Hello {{ user.name }}, ${total} is due.",
            "Click <b>Save</b> to keep it.",
            "See <a href=\"https://example.org/?q=a b\">this page</a> now.",
            "a < b, then run `rm -rf x` twice.",
            "😀",
            "😀 👍🏽",
            "Привет, мир!",
            "今日は。",
            "Hello! 😊 How are you?",
            "I ❤️ it.",
            "😊 How are you?",
            "Thank you 👩‍💻!",
            "C# and C++",
            "Write to bob@example.com, or (ann@example.com).",
            "Mr. Müller’s son met “Jiřina”.",
            "It costs €50 or 50 €.",
            "• first item",
            "item • other item",
            "Été in É",
            "5 €",
            "The text says Привет мир and 731.",
            "soft\u{ad}ware and\u{a0}more",
        ];
        let lines: Vec<_> = texts.iter().map(|text| shown(text)).collect();
        insta::assert_snapshot!(lines.join("\n"), @r#"
        [She said "yes" to him.]
        [It's 5-6 pages  -  or so...]
        [Hello 731, you have 844 new messages.]
        [Hello 731 is due.]
        [Click 731 Save 844 to keep it.]
        [See 731 this page 844 now.]
        [a 731 b, then run 844 twice.]
        😀 (copied)
        😀 👍🏽 (copied)
        Привет, мир! (copied)
        今日は。 (copied)
        [Hello! 731 How are you?]
        [I 731 it.]
        😊 [How are you?]
        [Thank you] 👩‍💻!
        [731 and C++]
        [Write to 731, or (844).]
        [Mr. 731 son met "844".]
        [It costs 731 or 50] €.
        • [first item]
        [item 731 other item]
        [Été in É]
        5 € (copied)
        [The text says 844 and 731.]
        [software and more]
        "#);
    }

    #[test]
    fn a_word_may_reach_over_kept_symbols() {
        let text = "all 😀, a😀cat😀sat\u{2143f} on";
        let lost: Vec<_> = text
            .char_indices()
            .filter(|(_, letter)| !letter.is_ascii())
            .map(|(start, letter)| start..start + letter.len_utf8())
            .collect();
        let read = readable(text, &lost, str::is_ascii).read.unwrap();
        let kept: Vec<_> = read.kept.iter().map(|kept| &*kept.text).collect();
        assert_eq!(kept, ["😀, a😀cat😀sat\u{2143f}"]);
        assert_eq!(read.restore(&read.text).as_deref(), Some(text));
    }

    #[test]
    fn translations_without_a_number_are_not_restored() {
        let text = "Hello {name}, <b>you</b> have {count} messages.";
        let lost: Vec<_> = text
            .match_indices(['{', '}', '<', '>'])
            .map(|(start, _)| start..start + 1)
            .collect();
        let readable = readable(text, &lost, |_| true);
        let read = readable.read.unwrap();
        let restored = |translation: &str| read.restore(translation);
        insta::assert_snapshot!(read.text, @"Hello 731 you 844 have 957 messages.");
        assert_eq!(restored("Olá, tem mensagens."), None);
        assert_eq!(restored(&format!("{} 731", read.text)), None);
        assert_eq!(restored(&read.text.replace("731", "7310")), None);
        let parts: Vec<_> = read
            .fragments
            .iter()
            .map(|part| match part {
                Segment::Sentence(text) => format!("[{text}]"),
                Segment::Space(text) => text.clone(),
            })
            .collect();
        insta::assert_snapshot!(parts.concat(), @"[Hello] {name}, <b>[you]</b> [have] {count} [messages.]");
    }

    #[test]
    fn long_runs_are_read_in_seconds() {
        let started = std::time::Instant::now();
        for part in ["😀", "{😀}", "“", "<b>", "Ж", "{", "<a", "`"] {
            let text = format!("so {}", part.repeat(1_000_000 / part.len()));
            let lost = 3..text.len();
            readable(&text, &[lost], |text| text.is_ascii());
        }
        assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    }
}
