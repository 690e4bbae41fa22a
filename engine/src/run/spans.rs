//! Scores for a text, its words or its word spans.

use super::{Run, Work};
use crate::{heads::spans::LabelKind, kernel::Kernel, program::SpanHead};

/// Scores the spans of one text.
#[inline(always)]
pub fn score_spans<K: Kernel>(kernel: K, head: &SpanHead, work: Work<'_>) {
    let Work {
        run,
        program,
        task: text,
        scratch,
    } = work;
    let buffers = &mut scratch.spans;
    let (value, tokens) = (program.values[head.input], run.attended[text].clone());
    let words = run.words(text);
    buffers.words.clear();
    buffers.words.resize(words * head.width, 0.0);
    buffers.labels.clear();
    buffers.schemas.clear();
    buffers.kinds.clear();
    buffers.tokens = 0;
    let mut texts = run.tokens[tokens.clone()].iter();
    run.each_part(value, tokens, |part| {
        for (row, token) in part.chunks_exact(head.width).zip(&mut texts) {
            if let Some(word) = (token.type_id as usize).checked_sub(1) {
                buffers.tokens += 1;
                let word = &mut buffers.words[word * head.width..][..head.width];
                word.iter_mut()
                    .zip(row)
                    .for_each(|(sum, value)| *sum += value);
            }
            if let Some(kind) = head.kind(token.id) {
                buffers.labels.extend_from_slice(row);
                let schema = (buffers.schemas.len() / head.width).saturating_sub(1);
                buffers.kinds.push((kind, schema));
            }
            if head.schemas.is_some_and(|tokens| tokens.schema == token.id) {
                buffers.schemas.extend_from_slice(row);
            }
        }
    });
    if head.marker.is_none() {
        buffers.labels.extend_from_slice(&run.labels[text]);
    }
    let mut scores = Vec::new();
    head.score(kernel, buffers, &mut scores);
    let mut out = run.part_mut(program.values[head.out].slot, text);
    out.clear();
    out.extend_from_slice(&scores);
}

impl SpanHead {
    /// The kind of the label behind a token; `None` for tokens that are not in front of labels.
    fn kind(&self, token: u32) -> Option<LabelKind> {
        if self.marker == Some(token) {
            return Some(LabelKind::Entity);
        }
        let tokens = self.schemas?;
        if tokens.fields.contains(&token) {
            return Some(LabelKind::Field);
        }
        (tokens.class == token).then_some(LabelKind::Class)
    }
}

impl Run {
    /// Number of words in a text: the largest one of its tokens' types.
    fn words(&self, text: usize) -> usize {
        let tokens = &self.tokens[self.attended[text].clone()];
        tokens
            .iter()
            .map(|token| token.type_id as usize)
            .max()
            .unwrap_or(0)
    }
}
