//! Recognizes files by their first bytes that are not what their names say.

use crate::error::Message;

/// A file format's name, and a hint that says what to do with such a file.
type Description = (&'static str, Option<&'static str>);

/// First bytes of text that a failed download left in place of a file, and what it is.
const STAND_INS: [(&[u8], Description); 6] = [
    (
        b"version https://git-lfs.github.com/spec/",
        (
            "a git-lfs pointer",
            Some("run `git lfs pull` in its repository to get the file"),
        ),
    ),
    (
        b"# xet version ",
        (
            "a Xet pointer",
            Some("download the file with `hf download`"),
        ),
    ),
    (b"<!doctype html", WEB_PAGE),
    (b"<html", WEB_PAGE),
    (b"<?xml", XML),
    (b"<error>", XML),
];
const WEB_PAGE: Description = (
    "a web page",
    Some("download the file itself, with an access token if it needs one"),
);
const XML: Description = (
    "an XML document, such as a server's error",
    Some("download the file again"),
);

/// First bytes of other formats for models and data.
const FORMATS: [(&[u8], Description); 8] = [
    (
        b"GGUF",
        (
            "a GGUF file of llama.cpp",
            Some("get the model's safetensors"),
        ),
    ),
    (
        b"\x89HDF\r\n\x1a\n",
        (
            "an HDF5 file of TensorFlow",
            Some("convert it with `from_tf=True` and `save_pretrained` of `transformers` 4"),
        ),
    ),
    (
        b"PK\x03\x04",
        (
            "a ZIP archive, as PyTorch writes it",
            Some("name it `pytorch_model.bin`, or save the model with `save_pretrained`"),
        ),
    ),
    (
        b"\x80\x02",
        (
            "a Python pickle",
            Some("save the model with `save_pretrained`"),
        ),
    ),
    (b"\x1f\x8b", ("packed with gzip", Some("unpack it"))),
    (b"\x28\xb5\x2f\xfd", ("packed with zstd", Some("unpack it"))),
    (b"PAR1", ("a Parquet file", None)),
    (b"%PDF-", ("a PDF document", None)),
];

/// Recognizes a placeholder, such as a git-lfs pointer, by the first `bytes`, and says what to do; `None` if it may be
/// the file itself.
pub fn stand_in(bytes: &[u8]) -> Option<Message> {
    let text = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    let text = text.trim_ascii_start();
    let begins = |start: &[u8]| {
        text.get(..start.len())
            .is_some_and(|found| found.eq_ignore_ascii_case(start))
    };
    find(&STAND_INS, begins)
}

/// Recognizes the format of an unreadable file by its first bytes, and says what to do; `None` for unknown formats.
pub fn format(bytes: &[u8]) -> Option<Message> {
    stand_in(bytes).or_else(|| find(&FORMATS, |start| bytes.starts_with(start)))
}

fn find(known: &[(&[u8], Description)], begins: impl Fn(&[u8]) -> bool) -> Option<Message> {
    let (_, description) = known.iter().find(|(start, _)| begins(start))?;
    Some(message(*description))
}

fn message((found, hint): Description) -> Message {
    let message = Message::new(found);
    match hint {
        Some(hint) => message.with_hint(hint),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_first_bytes() {
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
        assert_eq!(stand_in(pointer).unwrap().problem(), "a git-lfs pointer");
        for page in [
            &b"<!DOCTYPE html>\n<html>"[..],
            b"\xef\xbb\xbf\r\n  <HTML lang=\"en\">",
        ] {
            assert_eq!(stand_in(page), Some(message(WEB_PAGE)));
        }
        for document in [
            &b"<?xml version=\"1.0\"?><Error>"[..],
            b"<Error><Code>AccessDenied</Code></Error>",
        ] {
            assert_eq!(stand_in(document), Some(message(XML)));
        }
        for other in [
            &b""[..],
            b"{}",
            b"version 1",
            b"<htm",
            b"GGUF",
            b"text\n<html>\n",
        ] {
            assert_eq!(stand_in(other), None);
        }
        let of_llama = format(b"GGUF\x03").unwrap();
        assert_eq!(of_llama.hint(), Some("get the model's safetensors"));
        assert_eq!(format(b"<html>"), Some(message(WEB_PAGE)));
        assert_eq!(format(b"\x08\x07"), None);
    }
}
