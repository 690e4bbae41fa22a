//! Selects output compression and CSV delimiter by file name.

use crate::input::{
    compression::Compression,
    format::{Format, NamedForm},
};
use kivu::{Error, Result};

const TAB: u8 = b'\t';
const COMMA: u8 = b',';

/// Output form; the format equals the input's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputForm {
    pub compression: Compression,
    /// CSV delimiter, if it may differ from the input's, or the input is text.
    pub delimiter: Option<u8>,
}

impl OutputForm {
    /// Selects the form for the name `output`. Without a known extension, the input's form applies.
    ///
    /// Also returns a note if the name states a different format, because the input's name is just as wrong.
    ///
    /// # Errors
    /// The name states a different format, one that Kivu does not write, or a compressed Parquet file.
    pub fn of(
        output: &str,
        input: &str,
        format: Format,
        compression: Compression,
    ) -> Result<(Self, Option<String>)> {
        let (output, input) = (NamedForm::of(output), NamedForm::of(input));
        let is_text = format == Format::Text;
        let (format, reason) = match (format, output.format) {
            // Responses are JSON Lines, too.
            (Format::OpenAi, _) => (Format::JsonLines, ", as responses are"),
            (Format::Text, Some(Format::Csv)) => (Format::Csv, ""),
            (Format::Text, _) => (Format::JsonLines, " or CSV, since the input is text"),
            (format, _) => (format, ", the input's format"),
        };
        let other = output.format.filter(|named| *named != format);
        if let Some(named) = other
            && input.format != other
        {
            return Err(Error::config(format!(
                "expected an output name for {format}{reason}, but found one for {named}"
            ))
            .with_hint("rename the output, or convert the input"));
        }
        if let Some(extension) = output.unsupported
            && input.unsupported != output.unsupported
        {
            return Err(Error::config(format!(
                "expected an output name for {format}{reason}, but found one that ends in `.{extension}`"
            ))
            .with_hint("rename the output"));
        }
        let note = other.map(|named| {
            format!("the output is {format}, as the input is, though its name is one of {named}")
        });
        if format == Format::Parquet {
            return match output.compression {
                None => Ok((Self::default(), note)),
                Some(_) => Err(Error::config(
                    "the output's name asks to compress a Parquet file, whose columns are compressed already",
                )),
            };
        }
        let compression = match (output.compression, output.format) {
            (Some(named), _) => named,
            (None, Some(_)) => Compression::None,
            (None, None) => compression,
        };
        let delimiter = match (output.is_tsv, output.format) {
            (true, _) => Some(TAB),
            (false, Some(Format::Csv)) if input.is_tsv || is_text => Some(COMMA),
            _ => None,
        };
        Ok((
            Self {
                compression,
                delimiter,
            },
            note,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(
        output: &str,
        input: &str,
        format: Format,
        compression: Compression,
    ) -> Result<OutputForm> {
        OutputForm::of(output, input, format, compression).map(|(form, _)| form)
    }

    #[test]
    fn the_name_determines_the_compression() {
        let of = |output, compression| {
            form(output, "in.csv", Format::Csv, compression)
                .unwrap()
                .compression
        };
        for found in [Compression::None, Compression::Gzip, Compression::Zstd] {
            assert_eq!(of("n.csv", found), Compression::None);
            assert_eq!(of("n.csv.gz", found), Compression::Gzip);
            assert_eq!(of("N.CSV.ZST", found), Compression::Zstd);
            assert_eq!(of("n.gz", found), Compression::Gzip);
            for name in ["standard output", "n", "n.txt", "/dev/stdout", "a.csv/n"] {
                assert_eq!(of(name, found), found, "{name}");
            }
        }
    }

    #[test]
    fn the_name_determines_tabs() {
        let of = |output, input| {
            form(output, input, Format::Csv, Compression::None)
                .unwrap()
                .delimiter
        };
        assert_eq!(of("b.tsv", "a.csv"), Some(b'\t'));
        assert_eq!(of("b.csv", "a.tsv"), Some(b','));
        assert_eq!(
            (of("b.csv", "a.csv"), of("b", "a.tsv"), of("b.csv", "a")),
            (None, None, None)
        );
    }

    #[test]
    fn text_becomes_json_lines_or_csv() {
        let of = |output| {
            form(output, "a.txt", Format::Text, Compression::None)
                .unwrap()
                .delimiter
        };
        assert_eq!((of("b.csv"), of("b.tsv.gz")), (Some(b','), Some(b'\t')));
        assert_eq!(
            (of("b.jsonl"), of("a.txt"), of("standard output")),
            (None, None, None)
        );
    }

    #[test]
    fn a_name_of_another_format_is_refused() {
        let refused = |output, input, format| {
            form(output, input, format, Compression::None)
                .unwrap_err()
                .to_string()
        };
        insta::assert_snapshot!(refused("emb.parquet", "r.csv", Format::Csv), @"expected an output name for CSV, the input's format, but found one for Parquet; rename the output, or convert the input");
        for (output, format) in [
            ("b.jsonl", Format::Csv),
            ("b.csv.gz", Format::JsonLines),
            ("b.json", Format::Parquet),
        ] {
            assert!(
                refused(output, "a.txt", format).contains("but found one for"),
                "{output}"
            );
        }
        insta::assert_snapshot!(refused("b.parquet.gz", "a.parquet", Format::Parquet), @"the output's name asks to compress a Parquet file, whose columns are compressed already");
        insta::assert_snapshot!(refused("b.XLSX", "a.csv", Format::Csv), @"expected an output name for CSV, the input's format, but found one that ends in `.xlsx`; rename the output");
        insta::assert_snapshot!(refused("b.csv.bz2", "a.csv", Format::Csv), @"expected an output name for CSV, the input's format, but found one that ends in `.bz2`; rename the output");
        insta::assert_snapshot!(refused("b.parquet", "a.txt", Format::Text), @"expected an output name for JSON Lines or CSV, since the input is text, but found one for Parquet; rename the output, or convert the input");
        // Both names are wrong, as in a bucket where an input's name determines the output's.
        assert!(form("out/a.xlsx", "in/a.xlsx", Format::Csv, Compression::None).is_ok());
        let (_, note) = OutputForm::of(
            "out/a.csv",
            "in/a.csv",
            Format::JsonLines,
            Compression::None,
        )
        .unwrap();
        insta::assert_snapshot!(note.unwrap(), @"the output is JSON Lines, as the input is, though its name is one of CSV");
    }
}
