//! Translates tokenizers' regular expressions, which `transformers` matches with Oniguruma, to `fancy-regex`.
//!
//! Both support most of the syntax, but their character classes differ: in Oniguruma, `[[:alpha:]]` has the letters in
//! all scripts, `\w` has `²`, and `\h` is a hexadecimal digit. Syntax that may differ in meaning is refused.

use std::{iter::Peekable, str::Chars};

/// `[[:word:]]`: letters, marks, digits, and connectors such as `_`.
const WORD: &str = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}";
/// Characters in `\w` outside brackets that [`WORD`] lacks.
const NUMBERS: &str = "²³¹¼½¾";
const HEXADECIMAL: &str = "0-9a-fA-F";
/// Letters that match one character without regard to case.
const FOLDED: [&str; 5] = ["ff", "fi", "fl", "ss", "st"];

/// Translates a regular expression.
pub fn translate(pattern: &str) -> Result<String, String> {
    let mut translator = Translator {
        rest: pattern.chars().peekable(),
        output: String::new(),
        ignores_case: false,
        depth: 0,
    };
    translator
        .expression()
        .map_err(|found| format!("unsupported regular expression: found {found} in `{pattern}`"))?;
    let lower = pattern.to_lowercase();
    if translator.ignores_case
        && (FOLDED.iter().any(|text| lower.contains(*text)) || has_letters_beyond_ascii(pattern))
    {
        return Err(format!(
            "expected letters that fold to one character each after `(?i`, but found others in `{pattern}`"
        ));
    }
    Ok(translator.output)
}

fn has_letters_beyond_ascii(pattern: &str) -> bool {
    pattern
        .chars()
        .any(|letter| !letter.is_ascii() && letter.is_alphabetic())
}

struct Translator<'a> {
    rest: Peekable<Chars<'a>>,
    output: String,
    /// Whether a part of the expression ignores case.
    ignores_case: bool,
    /// Classes that the next character is in.
    depth: usize,
}

/// The error names the unsupported syntax.
type Outcome<T> = Result<T, String>;

impl Translator<'_> {
    fn expression(&mut self) -> Outcome<()> {
        while let Some(next) = self.rest.next() {
            match next {
                '\\' => self.escape().map(drop)?,
                '[' => self.class()?,
                '(' if self.rest.peek() == Some(&'?') => self.group()?,
                '(' if self.rest.peek() == Some(&'*') => return Err("`(*`".to_owned()),
                // At a line start, except after the last line break.
                '^' => self.output.push_str(r"(?:\A|(?<=\n)(?!\z))"),
                '$' => self.output.push_str("(?m:$)"),
                '{' => self.repetition()?,
                other => self.output.push(other),
            }
        }
        Ok(())
    }

    /// Translates the rest of a group after its parenthesis.
    fn group(&mut self) -> Outcome<()> {
        let is_first = self.output.is_empty();
        let mut kind = String::new();
        self.rest.next();
        for next in self.rest.by_ref() {
            kind.push(next);
            let is_name =
                kind.starts_with('<') && !kind.starts_with("<=") && !kind.starts_with("<!");
            if "=!>:)".contains(next) || (next == '<' && kind.len() > 1) {
                if is_name && next != '>' && kind.len() > 2 {
                    continue;
                }
                break;
            }
        }
        let flags = kind.trim_end_matches([':', ')']);
        let is_known = match kind.as_str() {
            ":" | "=" | "!" | ">" | "<=" | "<!" => true,
            name if name.starts_with('<') => {
                let name = name.trim_start_matches('<').trim_end_matches('>');
                name.starts_with(|first: char| first.is_ascii_alphabetic())
                    && name
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            }
            // Flags without a group have a different scope in the two engines, unless they apply to the whole
            // expression.
            _ => {
                !flags.is_empty()
                    && flags.bytes().all(|flag| b"im-".contains(&flag))
                    && (kind.ends_with(':') || is_first && kind.ends_with(')'))
            }
        };
        if !is_known {
            return Err(format!("`(?{kind}`"));
        }
        let has_flags = !flags.is_empty() && !kind.starts_with(['<', '=', '!', '>']);
        self.ignores_case |=
            has_flags && flags.split('-').next().is_some_and(|set| set.contains('i'));
        // With `m`, a dot matches line breaks.
        let kind = if has_flags {
            kind.replace('m', "s")
        } else {
            kind
        };
        self.output.push_str("(?");
        self.output.push_str(&kind);
        Ok(())
    }

    /// Translates the rest of a repetition after its brace, or a literal brace.
    fn repetition(&mut self) -> Outcome<()> {
        let ahead: String = self.rest.clone().take_while(|next| *next != '}').collect();
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let (least, most) = ahead
            .split_once(',')
            .map_or((ahead.as_str(), None), |(least, most)| (least, Some(most)));
        let is_closed = self.rest.clone().nth(ahead.chars().count()) == Some('}');
        let has_digits = ahead.bytes().any(|byte| byte.is_ascii_digit());
        if !is_closed || !has_digits || !is_number(least) || !most.is_none_or(is_number) {
            self.output.push_str(r"\{");
            return Ok(());
        }
        self.rest.nth(ahead.chars().count());
        let least = if least.is_empty() { "0" } else { least };
        match most {
            None => self.output.push_str(&format!("{{{least}}}")),
            Some(most) => self.output.push_str(&format!("{{{least},{most}}}")),
        }
        match self.rest.peek() {
            Some('+') => Err(format!("`{{{ahead}}}+`")),
            Some('?') if most.is_none() => Err(format!("`{{{ahead}}}?`")),
            _ => Ok(()),
        }
    }

    /// Translates the rest of a class after its bracket.
    fn class(&mut self) -> Outcome<()> {
        self.depth += 1;
        self.output.push('[');
        if self.rest.next_if_eq(&'^').is_some() {
            self.output.push('^');
        }
        // Whether the last item is a character, which a range may begin with.
        let (mut is_first, mut is_character) = (true, false);
        loop {
            let next = self.rest.next().ok_or("a class without an end")?;
            match next {
                ']' if !is_first => break,
                '[' if self.rest.peek() == Some(&':') => {
                    self.posix()?;
                    is_character = false;
                }
                '[' => {
                    self.class()?;
                    is_character = false;
                }
                '&' if self.rest.next_if_eq(&'&').is_some() => {
                    self.output.push_str("&&");
                    is_character = false;
                }
                '-' if is_character && self.rest.peek().is_some_and(|next| *next != ']') => {
                    self.output.push('-');
                    let last = self.rest.next().unwrap_or_default();
                    match last {
                        '\\' if self.escape()? => {}
                        '\\' | '[' => return Err("a range that ends with a class".to_owned()),
                        last => self.literal(last),
                    }
                    is_character = false;
                }
                '\\' => is_character = self.escape()?,
                other => {
                    self.literal(other);
                    is_character = true;
                }
            }
            is_first = false;
        }
        self.output.push(']');
        self.depth -= 1;
        Ok(())
    }

    /// A character as itself.
    fn literal(&mut self, character: char) {
        if character.is_ascii_punctuation() && !"<>".contains(character) {
            self.output.push('\\');
        }
        self.output.push(character);
    }

    /// Translates the rest of `[:alpha:]` after its bracket.
    fn posix(&mut self) -> Outcome<()> {
        let name: String = self
            .rest
            .by_ref()
            .skip(1)
            .take_while(|next| *next != ':')
            .collect();
        if self.rest.next() != Some(']') {
            return Err(format!("`[:{name}`"));
        }
        let (caret, name) = name
            .strip_prefix('^')
            .map_or(("", name.as_str()), |name| ("^", name));
        let items = match name {
            "word" => WORD,
            "punct" => r"\p{P}\p{S}",
            name => named(name).ok_or_else(|| format!("`[:{name}:]`"))?,
        };
        self.items(caret, items);
        Ok(())
    }

    /// Class items, alone or inside a class; `caret` may negate them.
    fn items(&mut self, caret: &str, items: &str) {
        match self.depth > 0 && caret.is_empty() {
            true => self.output.push_str(items),
            false => self.output.push_str(&format!("[{caret}{items}]")),
        }
    }

    /// Translates the rest of an escape after its backslash. Returns whether it is a character.
    fn escape(&mut self) -> Outcome<bool> {
        let in_class = self.depth > 0;
        let next = self.rest.next().ok_or("a backslash at the end")?;
        let caret = if next.is_ascii_uppercase() { "^" } else { "" };
        let word = || format!("{WORD}{NUMBERS}");
        match next {
            'w' | 'W' if in_class => self.items(caret, WORD),
            'w' | 'W' => self.items(caret, &word()),
            'h' | 'H' => self.items(caret, HEXADECIMAL),
            'd' | 'D' | 's' | 'S' => self.output.extend(['\\', next]),
            'p' | 'P' => self.property(next)?,
            'b' if !in_class => {
                let word = word();
                self.output.push_str(&format!(
                    "(?:(?<=[{word}])(?![{word}])|(?<![{word}])(?=[{word}]))"
                ));
            }
            'B' if !in_class => {
                let word = word();
                self.output.push_str(&format!(
                    "(?:(?<=[{word}])(?=[{word}])|(?<![{word}])(?![{word}]))"
                ));
            }
            'A' | 'z' | 'Z' | '1'..='9' if !in_class => self.output.extend(['\\', next]),
            'b' => return self.code(0x08),
            'a' | 'n' | 't' | 'r' | 'f' => {
                self.output.extend(['\\', next]);
                return Ok(true);
            }
            'v' => return self.code(0x0b),
            'e' => return self.code(0x1b),
            'x' | 'u' => {
                let code = self.hexadecimal(next)?;
                return self.code(code);
            }
            other if other.is_ascii_alphanumeric() => return Err(format!("`\\{other}`")),
            other => {
                self.literal(other);
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn code(&mut self, code: u32) -> Outcome<bool> {
        self.output.push_str(&format!("\\x{{{code:X}}}"));
        Ok(true)
    }

    /// The number in `\x41`, `\x{41}` or `\u0041`.
    fn hexadecimal(&mut self, kind: char) -> Outcome<u32> {
        let digits: String = match self.rest.peek() {
            Some('{') => self
                .rest
                .by_ref()
                .skip(1)
                .take_while(|next| *next != '}')
                .collect(),
            _ => self
                .rest
                .by_ref()
                .take(if kind == 'x' { 2 } else { 4 })
                .collect(),
        };
        let code = u32::from_str_radix(&digits, 16).map_err(|_| format!("`\\{kind}{digits}`"))?;
        // Two digits are a byte, which is a whole character only below 80.
        let is_byte = kind == 'x' && digits.len() == 2 && code >= 0x80;
        if is_byte {
            Err(format!("`\\x{digits}`"))
        } else {
            Ok(code)
        }
    }

    /// Translates the rest of `\p{L}` after its letter.
    fn property(&mut self, letter: char) -> Outcome<()> {
        if self.rest.next() != Some('{') {
            return Err("`\\p` without braces".to_owned());
        }
        let name: String = self.rest.by_ref().take_while(|next| *next != '}').collect();
        let (letter, name) = match (name.strip_prefix('^'), letter) {
            (None, letter) => (letter, name.as_str()),
            (Some(name), 'p') => ('P', name),
            (Some(name), _) => ('p', name),
        };
        let plain: String = name
            .chars()
            .filter(|letter| !" _-".contains(*letter))
            .collect();
        let plain = plain.to_lowercase();
        let known = match plain.as_str() {
            "word" if self.depth > 0 => Some(WORD.to_owned()),
            "word" => Some(format!("{WORD}{NUMBERS}")),
            "punct" => Some(r"\p{P}".to_owned()),
            plain => named(plain).map(str::to_owned),
        };
        match known {
            Some(items) => self.items(if letter == 'P' { "^" } else { "" }, &items),
            None => self.output.push_str(&format!("\\{letter}{{{name}}}")),
        }
        Ok(())
    }
}

/// Items in a POSIX class.
fn named(name: &str) -> Option<&'static str> {
    Some(match name {
        "alnum" => r"\p{Alphabetic}\p{Nd}",
        "alpha" => r"\p{Alphabetic}",
        "ascii" => r"\x00-\x7F",
        "blank" => r"\p{Zs}\t",
        "cntrl" => r"\p{Cc}",
        "digit" => r"\p{Nd}",
        "graph" => r"[^\s\p{Cc}\p{Cn}]",
        "lower" => r"\p{Lowercase}",
        "print" => r"\p{Zs}[^\s\p{Cc}\p{Cn}]",
        "space" => r"\s",
        "upper" => r"\p{Uppercase}",
        "xdigit" => HEXADECIMAL,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use regex::Regex;
    use serde::Deserialize;
    use sha2::{Digest, Sha256};
    use tokenizers::{
        OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior,
        pre_tokenizers::split::{Split, SplitPattern},
    };

    use super::*;

    #[derive(Deserialize)]
    struct Golden {
        sets: Vec<Set>,
        splits: Vec<Pieces>,
        refused: Vec<String>,
    }

    /// The characters that a pattern matches.
    #[derive(Deserialize)]
    struct Set {
        pattern: String,
        count: usize,
        sha256: String,
    }

    #[derive(Deserialize)]
    struct Pieces {
        pattern: String,
        text: String,
        pieces: Vec<String>,
    }

    fn golden() -> Golden {
        serde_json::from_str(include_str!("../../tests/fixtures/goldens/patterns.json")).unwrap()
    }

    fn pieces(pattern: &str, text: &str) -> Vec<String> {
        let pattern = SplitPattern::Regex(translate(pattern).unwrap());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap();
        let mut text = PreTokenizedString::from(text);
        split.pre_tokenize(&mut text).unwrap();
        let splits = text.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits
            .into_iter()
            .map(|(piece, ..)| piece.to_owned())
            .collect()
    }

    #[test]
    fn classes_have_the_characters_of_oniguruma() {
        let all: String = (0..=0x10_ffff).filter_map(char::from_u32).collect();
        for Set {
            pattern,
            count,
            sha256,
        } in golden().sets
        {
            let regex = Regex::new(&format!("(?:{})+", translate(&pattern).unwrap())).unwrap();
            let (mut found, mut hash) = (0, Sha256::new());
            for character in regex.find_iter(&all).flat_map(|run| run.as_str().chars()) {
                found += 1;
                hash.update(u32::from(character).to_le_bytes());
            }
            let hash: String = hash
                .finalize()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            assert_eq!((found, hash), (count, sha256), "{pattern}");
        }
    }

    #[test]
    fn texts_are_split_as_by_oniguruma() {
        let golden = golden();
        assert!(golden.splits.len() > 100);
        for Pieces {
            pattern,
            text,
            pieces: expected,
        } in golden.splits
        {
            let found = pieces(&pattern, &text);
            assert_eq!(
                found,
                expected,
                "{pattern} as {}",
                translate(&pattern).unwrap()
            );
        }
    }

    #[test]
    fn syntax_of_another_meaning_is_refused() {
        for pattern in golden().refused {
            assert!(translate(&pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn common_patterns_remain_as_they_are() {
        let qwen = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        assert_eq!(translate(qwen).unwrap(), qwen);
    }
}
