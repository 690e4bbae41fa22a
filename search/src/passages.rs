//! A file's passages: paragraphs, or several short ones.

use html5gum::{DefaultEmitter, Token, Tokenizer};
use pulldown_cmark::{Event, Parser, Tag};
use unicode_segmentation::UnicodeSegmentation;

/// Characters of a passage below which the next block is added to it.
const SHORT: usize = 200;
/// All passages have fewer characters.
const LONG: usize = 1000;
/// Extensions, and none, of texts whose indented paragraphs do not continue the one before, as in code.
const PROSE: &str = " txt text rst adoc org tex log";
/// HTML elements whose text is not shown, some that are part of a line, and headings.
const HIDDEN: &str = "script style template svg";
const INLINE: &str = "a abbr b cite code em i kbd mark q s small span strong sub sup u";
const HEADINGS: &str = "h1 h2 h3 h4 h5 h6";

/// The passages of a text in a file with this extension, and the lines in which they begin, from 1: Markdown by its
/// blocks, HTML by its elements, and all others by blank lines. A heading begins a passage, and what is indented after a
/// blank line in code continues one.
pub fn passages(extension: &str, text: &str) -> Vec<(u32, String)> {
    let (mut found, mut read, mut read_lines) = (Vec::<(u32, String)>::new(), 0, 1);
    // Adds a block after those before: to the last passage if that has fewer than `limit` characters.
    let add = |start: usize, block: &str, mut limit: usize| {
        read_lines += line_ends(&text.as_bytes()[read..start]);
        read = start;
        let mut line = read_lines;
        for piece in pieces(block) {
            let text = piece.trim();
            let blank = &piece[..piece.len() - piece.trim_start().len()];
            let room = limit.min(LONG.saturating_sub(characters(text)));
            match found.last_mut().map(|(_, text)| text) {
                _ if text.is_empty() => {}
                Some(last) if characters(last) < room => *last = format!("{last}\n\n{text}"),
                _ => found.push((line + line_ends(blank.as_bytes()), text.to_owned())),
            }
            line += line_ends(piece.as_bytes());
            limit = SHORT;
        }
    };
    match extension.to_ascii_lowercase().as_str() {
        "md" | "markdown" => markdown(text, add),
        "html" | "htm" | "xhtml" => html(text, add),
        prose if is_among(PROSE, prose) => paragraphs(text, SHORT, add),
        _ => paragraphs(text, LONG, add),
    }
    found
}

/// What is indented continues a passage with fewer than `limit` characters.
fn paragraphs(text: &str, limit: usize, mut add: impl FnMut(usize, &str, usize)) {
    let (mut start, mut end) = (0, 0);
    for line in text.split_inclusive('\n').chain([""]) {
        if line.trim().is_empty() {
            let block = &text[start..end];
            let is_indented = block.starts_with([' ', '\t']);
            add(start, block, if is_indented { limit } else { SHORT });
            start = end + line.len();
        }
        end += line.len();
    }
}

fn markdown(text: &str, mut add: impl FnMut(usize, &str, usize)) {
    let mut end = 0;
    for (event, place) in Parser::new(text).into_offset_iter() {
        if let Event::Start(tag) = event
            && place.start >= end
        {
            end = place.end;
            let is_heading = matches!(tag, Tag::Heading { .. });
            let limit = if is_heading { 0 } else { SHORT };
            add(place.start, &text[place], limit);
        }
    }
}

/// The text that a page shows.
fn html(text: &str, mut add: impl FnMut(usize, &str, usize)) {
    let (mut start, mut block, mut limit, mut is_hidden) = (0, String::new(), SHORT, false);
    let mut emitter = DefaultEmitter::<usize>::new_with_span();
    emitter.naively_switch_states(true);
    for Ok(token) in Tokenizer::new_with_emitter(text, emitter) {
        let (name, is_start) = match token {
            Token::String(shown) if !is_hidden => {
                if block.trim().is_empty() {
                    (start, block) = (shown.span.start, String::new());
                }
                block.push_str(&String::from_utf8_lossy(&shown.value));
                continue;
            }
            Token::StartTag(tag) => (tag.name, !tag.self_closing),
            Token::EndTag(tag) => (tag.name, false),
            _ => continue,
        };
        let name = String::from_utf8_lossy(&name);
        if is_among(HIDDEN, &name) {
            is_hidden = is_start;
        }
        if !is_among(INLINE, &name) {
            add(start, &block, limit);
            block.clear();
            let is_heading = is_start && is_among(HEADINGS, &name);
            limit = if is_heading { 0 } else { SHORT };
        }
    }
    add(start, &block, limit);
}

fn is_among(names: &str, name: &str) -> bool {
    names.split(' ').any(|known| known == name)
}

fn line_ends(bytes: &[u8]) -> u32 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u32
}

fn characters(text: &str) -> usize {
    text.chars().count()
}

/// Parts with fewer characters than [`LONG`], at the ends of sentences, or else of words.
fn pieces(text: &str) -> Vec<&str> {
    if characters(text) < LONG {
        return vec![text];
    }
    let (mut pieces, mut start, mut end) = (Vec::new(), 0, 0);
    let words = |sentence: &str| match characters(sentence) {
        ..LONG => vec![sentence.len()],
        _ => sentence.split_word_bounds().map(str::len).collect(),
    };
    for length in text.split_sentence_bounds().flat_map(words) {
        if start < end && characters(&text[start..end + length]) >= LONG {
            pieces.push(&text[start..end]);
            start = end;
        }
        end += length;
    }
    pieces.push(&text[start..]);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(found: &[(u32, String)]) -> Vec<u32> {
        found.iter().map(|(line, _)| *line).collect()
    }

    #[test]
    fn passages_are_paragraphs_with_their_lines() {
        let long = "word ".repeat(100);
        let text = format!("{long}\n\nshort\n\n\n{long}\n");
        let found_text = passages("txt", &text);
        assert_eq!(lines(&found_text), [1, 3]);
        assert!(found_text[1].1.starts_with("short\n\nword"));
        let headed = passages(
            "md",
            &format!("# One\n\n{long}\n\nshort\n\n# Two\n- {long}\n"),
        );
        assert_eq!(lines(&headed), [1, 5, 7]);
        assert!(headed[2].1.starts_with("# Two\n\n- word"));
        assert_eq!(passages("txt", " \n"), []);
    }

    #[test]
    fn long_paragraphs_are_divided_at_sentences_or_words() {
        let sentence = format!("A {}. ", "word ".repeat(60).trim());
        let divided = passages("txt", &format!("\n{}", sentence.repeat(9)));
        assert_eq!(divided.len(), 3);
        assert!(
            divided
                .iter()
                .all(|(_, text)| text.ends_with('.') && text.len() < LONG)
        );
        let lines_without_sentences = "let x = 1\n".repeat(300);
        let divided = passages("rs", &lines_without_sentences);
        assert!(
            divided
                .iter()
                .all(|(line, text)| text.starts_with("let") || *line > 1)
        );
        let all: String = divided.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(all.matches("let").count(), 300);
        let endless = "x".repeat(5000);
        assert_eq!(passages("txt", &endless), [(1, endless)]);
    }

    #[test]
    fn what_is_indented_in_code_continues_a_passage() {
        let long = "x = 1\n    ".repeat(30);
        let text = format!("def a():\n    {long}\n\n    y = 2\n\ndef b():\n    return 3\n");
        assert_eq!(lines(&passages("py", &text)), [1, 36]);
        assert_eq!(lines(&passages("txt", &text)), [1, 34]);
    }

    #[test]
    fn a_page_has_the_text_that_it_shows() {
        let long = "word ".repeat(60);
        let page = format!(
            "<html><style>p {{}}</style>\n<p>\nCaf&eacute; <b>{long}</b></p>\n<script>var a = '<p>';</script>\n<p>{long}</p>"
        );
        let shown = passages("html", &page);
        assert_eq!(lines(&shown), [3, 5]);
        assert!(shown[0].1.starts_with("Café word"));
        assert!(!shown.iter().any(|(_, text)| text.contains("var")));
    }
}
