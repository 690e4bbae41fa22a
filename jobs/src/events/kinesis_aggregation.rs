//! Records that the Kinesis Producer Library aggregates: several records of an application in one of the stream.
//!
//! The format is documented in the library's repository, in `aggregation-format.md`: magic bytes, a message, and its MD5.

use md5::{Digest, Md5};
use prost::Message;

#[cfg(test)]
pub use self::tests::aggregate;

const MAGIC: [u8; 4] = [0xF3, 0x89, 0x9A, 0xC2];
const DIGEST_BYTES: usize = 16;

/// The message; keys and tags are skipped.
#[derive(Clone, PartialEq, Message)]
struct AggregatedRecord {
    #[prost(message, repeated, tag = "3")]
    records: Vec<UserRecord>,
}

#[derive(Clone, PartialEq, Message)]
struct UserRecord {
    #[prost(bytes = "vec", tag = "3")]
    data: Vec<u8>,
}

/// The records in a stream's record: itself, unless it is aggregated.
pub fn records(data: Vec<u8>) -> Vec<Vec<u8>> {
    match aggregated(&data) {
        Some(records) => records.into_iter().map(|record| record.data).collect(),
        None => vec![data],
    }
}

/// As the library's consumers do, takes data with another digest for a record that begins with the magic bytes.
fn aggregated(data: &[u8]) -> Option<Vec<UserRecord>> {
    let (message, digest) = data
        .strip_prefix(&MAGIC)?
        .split_last_chunk::<DIGEST_BYTES>()?;
    let is_whole = Md5::digest(message).as_slice() == digest;
    is_whole
        .then(|| AggregatedRecord::decode(message).ok())
        .flatten()
        .map(|message| message.records)
}

#[cfg(test)]
mod tests {
    use base64::{Engine, prelude::BASE64_STANDARD};

    use super::*;

    /// Made by `aws_kinesis_agg` 1.2.3, with two records and explicit hash keys.
    const MADE: &str = "84mawgoFa2V5LTEKBWtleS0yEgExEgEyGhUIABAAGg97InRleHQiOiAib25lIn0aFQgBEAEaD3sidGV4dCI6ICJ0d28ifXXBUTCEtLZIanUnfQCfjSI=";

    /// An aggregated record as the format describes it, written without the types above.
    pub fn aggregate(records: &[&str]) -> Vec<u8> {
        let mut message = b"\x0a\x01k".to_vec();
        for record in records {
            let length = u8::try_from(record.len()).unwrap();
            // The index of the key, and the data.
            message.extend([0x1a, length + 4, 0x08, 0, 0x1a, length]);
            message.extend(record.as_bytes());
        }
        let digest = Md5::digest(&message);
        [&MAGIC[..], &message, &digest[..]].concat()
    }

    #[test]
    fn aggregated_records_are_separated() {
        assert_eq!(
            records(aggregate(&["one", "two"])),
            [b"one".to_vec(), b"two".to_vec()]
        );
        assert!(records(aggregate(&[])).is_empty());
        let made = records(BASE64_STANDARD.decode(MADE).unwrap());
        assert_eq!(
            made,
            [
                b"{\"text\": \"one\"}".to_vec(),
                b"{\"text\": \"two\"}".to_vec()
            ]
        );
    }

    #[test]
    fn other_records_stay() {
        let whole = aggregate(&["one", "two"]);
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(records(damaged.clone()), [damaged], "bit {bit}");
        }
        for data in [&b"{}"[..], b"", &MAGIC, &whole[..19]] {
            assert_eq!(records(data.to_vec()), [data.to_vec()]);
        }
    }
}
