//! A file's passages: paragraphs, or several short ones.

use std::ops::Range;

use html5gum::{DefaultEmitter, Spanned, Token, Tokenizer};
use pulldown_cmark::{Event, Parser, Tag};
use unicode_segmentation::UnicodeSegmentation;

/// Characters of a passage: shorter blocks are joined, and longer ones divided at sentences.
const SIZE: Range<usize> = 200..1000;
/// HTML elements whose text is no text, and some that are part of a line.
const HIDDEN: [&[u8]; 4] = [b"script", b"style", b"template", b"svg"];
const INLINE: [&[u8]; 17] = [
    b"a", b"abbr", b"b", b"cite", b"code", b"em", b"i", b"kbd", b"mark", b"q", b"s", b"small",
    b"span", b"strong", b"sub", b"sup", b"u",
];
const HEADINGS: [&[u8]; 6] = [b"h1", b"h2", b"h3", b"h4", b"h5", b"h6"];

/// A passage, and the line of its file in which it begins, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passage {
    pub line: u32,
    pub text: String,
}

/// The passages of a text in a file with this extension: Markdown by its blocks, HTML by its elements, and all others,
/// such as code, by blank lines. A heading begins a passage.
pub fn passages(extension: &str, text: &str) -> Vec<Passage> {
    let blocks = match extension.to_ascii_lowercase().as_str() {
        "md" | "markdown" => markdown(text),
        "html" | "htm" | "xhtml" => html(text),
        _ => paragraphs(text),
    };
    joined(blocks)
}

/// A paragraph, a list, a heading or another part that belongs together.
#[derive(Default)]
struct Block {
    line: u32,
    text: String,
    is_heading: bool,
}

fn paragraphs(text: &str) -> Vec<Block> {
    let (mut blocks, mut block) = (Vec::new(), Block::default());
    for (line, number) in text.lines().zip(1..) {
        if line.trim().is_empty() {
            blocks.push(std::mem::take(&mut block));
            continue;
        }
        if block.text.is_empty() {
            block.line = number;
        } else {
            block.text.push('\n');
        }
        block.text.push_str(line);
    }
    blocks.push(block);
    blocks
}

fn markdown(text: &str) -> Vec<Block> {
    let (mut blocks, mut depth, mut lines) = (Vec::new(), 0, Lines::of(text));
    for (event, place) in Parser::new(text).into_offset_iter() {
        match event {
            Event::Start(tag) => {
                depth += 1;
                if depth == 1 {
                    blocks.push(Block {
                        line: lines.at(place.start),
                        text: text[place].to_owned(),
                        is_heading: matches!(tag, Tag::Heading { .. }),
                    });
                }
            }
            Event::End(_) => depth -= 1,
            _ => {}
        }
    }
    blocks
}

/// The text that a page shows.
fn html(text: &str) -> Vec<Block> {
    let (mut blocks, mut block, mut lines) = (Vec::new(), Block::default(), Lines::of(text));
    let mut hidden = None::<Vec<u8>>;
    let mut emitter = DefaultEmitter::<usize>::new_with_span();
    emitter.naively_switch_states(true);
    for Ok(token) in Tokenizer::new_with_emitter(text, emitter) {
        match token {
            Token::String(Spanned { value, span }) if hidden.is_none() => {
                let shown = String::from_utf8_lossy(&value);
                if block.text.is_empty() {
                    let blank = shown.len() - shown.trim_start().len();
                    block.line = lines.at(span.start) + line_ends(&shown.as_bytes()[..blank]);
                    block.text.push_str(&shown[blank..]);
                } else {
                    block.text.push_str(&shown);
                }
            }
            Token::StartTag(tag) if hidden.is_none() => {
                if !INLINE.contains(&tag.name.as_slice()) {
                    blocks.push(std::mem::take(&mut block));
                    block.is_heading = HEADINGS.contains(&tag.name.as_slice());
                }
                let is_hidden = !tag.self_closing && HIDDEN.contains(&tag.name.as_slice());
                hidden = is_hidden.then(|| tag.name.to_vec());
            }
            Token::EndTag(tag) => {
                hidden = hidden.filter(|name| *name != tag.name.as_slice());
                if !INLINE.contains(&tag.name.as_slice()) {
                    blocks.push(std::mem::take(&mut block));
                }
            }
            _ => {}
        }
    }
    blocks.push(block);
    blocks
}

/// Line numbers of ascending places.
struct Lines<'a> {
    bytes: &'a [u8],
    read: usize,
    line: u32,
}

impl<'a> Lines<'a> {
    fn of(text: &'a str) -> Self {
        Self {
            bytes: text.as_bytes(),
            read: 0,
            line: 1,
        }
    }

    fn at(&mut self, place: usize) -> u32 {
        self.line += line_ends(&self.bytes[self.read..place]);
        self.read = place;
        self.line
    }
}

fn line_ends(bytes: &[u8]) -> u32 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u32
}

fn characters(text: &str) -> usize {
    text.chars().count()
}

/// Passages of a good size.
fn joined(blocks: Vec<Block>) -> Vec<Passage> {
    let mut passages: Vec<Passage> = Vec::new();
    for block in blocks {
        let mut line = block.line;
        let mut may_join = !block.is_heading;
        for piece in pieces(&block.text) {
            let text = piece.trim();
            match passages.last_mut().filter(|_| may_join) {
                _ if text.is_empty() => {}
                Some(last)
                    if characters(&last.text) < SIZE.start
                        && characters(&last.text) + characters(text) < SIZE.end =>
                {
                    last.text.push_str("\n\n");
                    last.text.push_str(text);
                }
                _ => passages.push(Passage {
                    line: line
                        + line_ends(&piece.as_bytes()[..piece.len() - piece.trim_start().len()]),
                    text: text.to_owned(),
                }),
            }
            line += line_ends(piece.as_bytes());
            may_join = true;
        }
    }
    passages
}

/// Parts of at most a passage's size, at the ends of sentences, or else of words.
fn pieces(text: &str) -> Vec<&str> {
    if characters(text) < SIZE.end {
        return vec![text];
    }
    let (mut pieces, mut start, mut size, mut end) = (Vec::new(), 0, 0, 0);
    let words = |sentence: &'_ str| match characters(sentence) {
        short if short < SIZE.end => vec![sentence.len()],
        _ => sentence.split_word_bounds().map(str::len).collect(),
    };
    for sentence in text.split_sentence_bounds() {
        for length in words(sentence) {
            let added = characters(&text[end..end + length]);
            if size + added >= SIZE.end && size > 0 {
                pieces.push(&text[start..end]);
                (start, size) = (end, 0);
            }
            (end, size) = (end + length, size + added);
        }
    }
    pieces.push(&text[start..]);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(extension: &str, text: &str) -> Vec<(u32, String)> {
        let all = passages(extension, text).into_iter();
        all.map(|passage| (passage.line, passage.text)).collect()
    }

    fn lines(found: &[(u32, String)]) -> Vec<u32> {
        found.iter().map(|(line, _)| *line).collect()
    }

    #[test]
    fn passages_are_paragraphs_with_their_lines() {
        let long = "word ".repeat(100);
        let text = format!("{long}\n\nshort\n\n\n{long}\n");
        let found_text = found("txt", &text);
        assert_eq!(lines(&found_text), [1, 3]);
        assert!(found_text[1].1.starts_with("short\n\nword"));
        let headed = found(
            "md",
            &format!("# One\n\n{long}\n\nshort\n\n# Two\n- {long}\n"),
        );
        assert_eq!(lines(&headed), [1, 5, 7]);
        assert!(headed[2].1.starts_with("# Two\n\n- word"));
        assert_eq!(found("txt", " \n"), []);
    }

    #[test]
    fn long_paragraphs_are_divided_at_sentences_or_words() {
        let sentence = format!("A {}. ", "word ".repeat(60).trim());
        let divided = found("txt", &format!("\n{}", sentence.repeat(9)));
        assert_eq!(divided.len(), 3);
        assert!(
            divided
                .iter()
                .all(|(_, text)| text.ends_with('.') && text.len() < SIZE.end)
        );
        let lines_without_sentences = "let x = 1\n".repeat(300);
        let divided = found("rs", &lines_without_sentences);
        assert!(
            divided
                .iter()
                .all(|(line, text)| text.starts_with("let") || *line > 1)
        );
        let all: String = divided.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(all.matches("let").count(), 300);
        let endless = "x".repeat(5000);
        assert_eq!(found("txt", &endless), [(1, endless)]);
    }

    #[test]
    fn a_page_has_the_text_that_it_shows() {
        let long = "word ".repeat(60);
        let page = format!(
            "<html><style>p {{}}</style>\n<p>\nCaf&eacute; <b>{long}</b></p>\n<script>var a = '<p>';</script>\n<p>{long}</p>"
        );
        let shown = found("html", &page);
        assert_eq!(lines(&shown), [3, 5]);
        assert!(shown[0].1.starts_with("Café word"));
        assert!(!shown.iter().any(|(_, text)| text.contains("var")));
    }
}
