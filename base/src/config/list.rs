//! Lists that are one text: in options, object metadata, arguments of SQL functions and variables.
//!
//! Items are separated by commas, and quoted as in CSV if they contain commas; or the text is a JSON list.

use std::collections::HashMap;

use crate::json::{self, Budget, Content};

/// The items of a text.
#[derive(Debug, Default)]
pub struct Items {
    /// The items without the empty ones between commas, up to a limit.
    pub kept: Vec<String>,
    /// Number of all these items.
    pub count: usize,
    /// Place of the first blank item, from 1.
    blank: Option<usize>,
}

impl Items {
    /// Reads a text, and keeps at most `max` items. The error is what was expected.
    pub fn read(text: &str, max: usize) -> Result<Self, String> {
        let mut items = Self::default();
        if text.trim_start().starts_with('[') {
            items.read_json(text, max)?;
        } else if !text.trim().is_empty() {
            items.read_separated(text, max)?;
        }
        Ok(items)
    }

    fn push(&mut self, place: usize, item: &str, max: usize) {
        if item.trim().is_empty() {
            self.blank.get_or_insert(place);
        }
        if self.count < max {
            self.kept.push(item.to_owned());
        }
        self.count += 1;
    }

    fn read_json(&mut self, text: &str, max: usize) -> Result<(), String> {
        let expected = || "a JSON list of strings".to_owned();
        let budget = Budget::new(text.len(), max);
        let Ok(Content::List(list)) = json::read(text.as_bytes(), budget) else {
            return Err(expected());
        };
        let count = list.count;
        for (index, value) in list.values().enumerate() {
            let Content::Text(item) = value else {
                return Err(expected());
            };
            self.push(index + 1, &item, max);
        }
        self.count = count;
        Ok(())
    }

    fn read_separated(&mut self, text: &str, max: usize) -> Result<(), String> {
        let (mut rest, mut place) = (Some(text), 0);
        while let Some(text) = rest {
            place += 1;
            if let Some(quoted) = text.trim_start().strip_prefix('"') {
                let (item, after) =
                    unquoted(quoted).ok_or_else(|| format!("a closing quote for item {place}"))?;
                self.push(place, &item, max);
                rest = match after.trim_start() {
                    "" => None,
                    after => Some(after.strip_prefix(',').ok_or_else(|| {
                        format!("a comma after the closing quote of item {place}")
                    })?),
                };
                continue;
            }
            let (item, after) = match text.split_once(',') {
                Some((item, after)) => (item.trim(), Some(after)),
                None => (text.trim(), None),
            };
            if item.contains('"') {
                return Err(format!(
                    "quotes around all of item {place}, and its own quotes doubled"
                ));
            }
            match item {
                "" => {
                    self.blank.get_or_insert(place);
                }
                item => self.push(place, item, max),
            }
            rest = after;
        }
        Ok(())
    }
}

/// The text up to the closing quote, where two quotes stand for one, and what follows; `None` without a closing quote.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let (mut item, mut rest) = (String::new(), text);
    loop {
        let (part, after) = rest.split_once('"')?;
        item.push_str(part);
        match after.strip_prefix('"') {
            Some(after) => {
                item.push('"');
                rest = after;
            }
            None => return Some((item, after)),
        }
    }
}

/// The items of lists that follow each other, as a repeated option has them. An empty text is an empty list.
///
/// # Errors
/// What was expected, if a list has another form, a blank item, or an item twice. It does not repeat the list, which may
/// be a secret.
///
/// # Examples
/// ```
/// use kivu_base::config::parse_lists;
///
/// let items = vec!["billing".to_owned(), "cancel, close".to_owned()];
/// assert_eq!(parse_lists(["billing,\"cancel, close\""]), Ok(items.clone()));
/// assert_eq!(parse_lists(["[\"billing\", \"cancel, close\"]"]), Ok(items));
/// ```
pub fn parse_lists<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for text in texts {
        let items = Items::read(text, usize::MAX)?;
        if let Some(place) = items.blank {
            return Err(format!("a text as item {place}"));
        }
        all.extend(items.kept);
    }
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (place, item) in (1..).zip(&all) {
        if let Some(first) = places.insert(item, place) {
            return Err(format!(
                "distinct items (item {place} repeats item {first})"
            ));
        }
    }
    Ok(all)
}

/// A text that [`parse_lists`] reads as `items`.
pub fn list_text(items: &[String]) -> String {
    let is_plain = |item: &String| {
        !item.is_empty()
            && !item.contains([',', '"'])
            && !item.starts_with('[')
            && item.trim() == item.as_str()
    };
    match items.iter().all(is_plain) {
        true => items.join(","),
        false => serde_json::json!(items).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<String>, String> {
        parse_lists([text])
    }

    #[test]
    fn items_may_contain_commas_quotes_and_spaces() {
        let cases: [(&str, &[&str]); 14] = [
            ("a", &["a"]),
            ("a, b ,c", &["a", "b", "c"]),
            ("billing,\"cancel, close\"", &["billing", "cancel, close"]),
            (" \"a, b\" , c", &["a, b", "c"]),
            ("\"say \"\"hi\"\", then\"", &["say \"hi\", then"]),
            ("\"\"\"\"", &["\""]),
            ("\" a\"", &[" a"]),
            ("\"a\nb\"", &["a\nb"]),
            ("it's,[b]", &["it's", "[b]"]),
            (
                "[\"billing\",\"cancel, close\"]",
                &["billing", "cancel, close"],
            ),
            (" [ \"a\\\"b\" ] ", &["a\"b"]),
            ("[]", &[]),
            ("", &[]),
            ("  ", &[]),
        ];
        for (text, expected) in cases {
            let items = parse(text).unwrap();
            assert_eq!(items, expected, "{text}");
            assert_eq!(parse(&list_text(&items)), Ok(items), "{text}");
        }
        assert_eq!(parse_lists(["a,b", "\"c, d\""]).unwrap().len(), 3);
    }

    #[test]
    fn other_forms_are_refused() {
        let texts = [
            "a,,b",
            ",a",
            "a,",
            "a,\"\"",
            "\" \"",
            "[\"a\", \"\"]",
            "a,b,a",
            "[\"a\", \"a\"]",
            "a,\"a\"",
            "a,\"b",
            "\"a\"\"",
            "\"a\" b,c",
            "say \"a, b\"",
            "[\"a\"",
            "[\"a\", 7]",
            "[7]",
            "['a']",
            "[a],b",
        ];
        let messages: Vec<_> = texts
            .iter()
            .map(|text| format!("{text}: {}", parse(text).unwrap_err()))
            .collect();
        insta::assert_snapshot!(messages.join("\n"), @r#"
        a,,b: a text as item 2
        ,a: a text as item 1
        a,: a text as item 2
        a,"": a text as item 2
        " ": a text as item 1
        ["a", ""]: a text as item 2
        a,b,a: distinct items (item 3 repeats item 1)
        ["a", "a"]: distinct items (item 2 repeats item 1)
        a,"a": distinct items (item 2 repeats item 1)
        a,"b: a closing quote for item 2
        "a"": a closing quote for item 1
        "a" b,c: a comma after the closing quote of item 1
        say "a, b": quotes around all of item 1, and its own quotes doubled
        ["a": a JSON list of strings
        ["a", 7]: a JSON list of strings
        [7]: a JSON list of strings
        ['a']: a JSON list of strings
        [a],b: a JSON list of strings
        "#);
        assert!(parse_lists(["a", "b,a"]).is_err());
    }

    proptest::proptest! {
        #[test]
        fn every_list_has_a_text(items in proptest::collection::hash_set("[a,\"\\[ \n]{0,4}[ab\u{e9}\"]", 0..5)) {
            let items: Vec<String> = items.into_iter().collect();
            proptest::prop_assert_eq!(parse(&list_text(&items)), Ok(items));
        }
    }
}
