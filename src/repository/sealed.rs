//! Bytes with a BLAKE3 hash, to detect damage.

/// `contents` after a line with their BLAKE3.
pub fn seal(contents: &[u8]) -> Vec<u8> {
    [blake3::hash(contents).to_hex().as_bytes(), b"\n", contents].concat()
}

/// Unseals bytes; `None` if they are damaged or something else.
pub fn open(sealed: &[u8]) -> Option<&[u8]> {
    let end = sealed.iter().position(|byte| *byte == b'\n')?;
    let (digest, contents) = (&sealed[..end], &sealed[end + 1..]);
    (blake3::hash(contents).to_hex().as_bytes() == digest).then_some(contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_damaged_bit_is_noticed() {
        let sealed = seal(b"some contents\nin lines");
        assert_eq!(open(&sealed), Some(&b"some contents\nin lines"[..]));
        for bit in 0..sealed.len() * 8 {
            let mut damaged = sealed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(&damaged), None, "bit {bit}");
        }
        assert_eq!(open(b""), None);
    }
}
