//! Little-endian values in a model file.

use kivu::{Error, Result, tensor::read_numbers};

/// The rest of a file.
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or_else(|| {
            Error::model(format!(
                "expected {count} more bytes of a fastText model, but found {}",
                self.bytes.len()
            ))
            .with_hint("the file is damaged")
        })?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH]> {
        let taken = self.take(LENGTH)?;
        taken
            .try_into()
            .map_err(|_| Error::model("expected as many bytes as taken"))
    }

    pub fn byte(&mut self) -> Result<u8> {
        self.array().map(|[byte]| byte)
    }

    /// A flag, which is a byte.
    pub fn flag(&mut self) -> Result<bool> {
        match self.byte()? {
            byte @ 0..=1 => Ok(byte == 1),
            other => Err(
                Error::model(format!("expected a flag of 0 or 1, but found {other}"))
                    .with_hint("the file is damaged"),
            ),
        }
    }

    pub fn int(&mut self) -> Result<i32> {
        self.array().map(i32::from_le_bytes)
    }

    pub fn long(&mut self) -> Result<i64> {
        self.array().map(i64::from_le_bytes)
    }

    /// A count in 4 bytes.
    pub fn count(&mut self, what: &str) -> Result<usize> {
        let count = self.int()?;
        usize::try_from(count).map_err(|_| negative(what, count.into()))
    }

    /// A count in 8 bytes.
    pub fn long_count(&mut self, what: &str) -> Result<usize> {
        let count = self.long()?;
        usize::try_from(count).map_err(|_| negative(what, count))
    }

    /// Finite numbers in 4 bytes each.
    pub fn floats(&mut self, count: usize) -> Result<Vec<f32>> {
        let bytes = self.take(count.saturating_mul(4))?;
        let values = read_numbers(bytes, f32::from_le_bytes).unwrap_or_default();
        match values.iter().find(|value| !value.is_finite()) {
            None => Ok(values),
            Some(value) => Err(Error::model(format!(
                "expected finite weights, but found {value}"
            ))),
        }
    }

    /// The bytes before the next zero, which is skipped.
    pub fn text(&mut self) -> Result<&'a [u8]> {
        let length = self
            .bytes
            .iter()
            .position(|byte| *byte == 0)
            .ok_or_else(|| {
                Error::model("expected the end of a word of a fastText model, but found none")
                    .with_hint("the file is damaged")
            })?;
        let text = self.take(length)?;
        self.take(1)?;
        Ok(text)
    }

    /// Refuses bytes after the end.
    pub fn finish(self) -> Result<()> {
        match self.bytes.len() {
            0 => Ok(()),
            count => Err(Error::model(format!(
                "expected a fastText model, but found {count} bytes after its end"
            ))
            .with_hint("the file is damaged")),
        }
    }
}

fn negative(what: &str, count: i64) -> Error {
    Error::model(format!("expected {what} of at least 0, but found {count}"))
        .with_hint("the file is damaged")
}
