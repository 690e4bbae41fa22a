//! Executes attention stages.

use std::ops::Range;

use super::{Run, rows::copy_row};
use crate::{
    attention::{Head, Scores},
    kernel::Kernel,
    program::{Attention, Per, Program, View},
};

/// Attention for one text and head.
#[inline(always)]
pub(super) fn attend<K: Kernel>(
    kernel: K,
    run: &Run,
    program: &Program,
    attention: &Attention,
    (text, head): (usize, usize),
    scratch: &mut Head,
) {
    let size = attention.queries.width / attention.heads;
    let key_head = head * attention.key_heads / attention.heads;
    let tokens = run.attended[text].clone();
    let queries = match program.values[attention.queries.value].per {
        Per::Token => run.texts[text].clone(),
        Per::Text => text..text + 1,
    };
    let copy = |view: View, head: usize, rows: Range<usize>, stride: usize, out: &mut Vec<f32>| {
        let value = program.values[view.value];
        let (width, first) = (value.width, view.offset + head * size);
        out.resize(rows.len() * stride, 0.0);
        let mut out = out.chunks_exact_mut(stride);
        run.each_part(value, rows, |part| {
            for (row, out) in part.chunks_exact(width).zip(&mut out) {
                copy_row(&row[first..first + size], &mut out[..size]);
                out[size..].fill(0.0);
            }
        });
    };
    let count = queries.len();
    scratch.size = size;
    copy(attention.queries, head, queries, size, &mut scratch.queries);
    copy(attention.keys, key_head, tokens.clone(), size, &mut scratch.keys);
    copy(attention.values, key_head, tokens, Head::value_stride(size), &mut scratch.values);
    if let Some(rotary) = attention.rotary.map(|rotary| &program.rotaries[rotary]) {
        let table = rotary.table(scratch.keys.len() / size);
        for rows in [&mut scratch.queries, &mut scratch.keys] {
            for (position, row) in rows.chunks_exact_mut(size).enumerate() {
                table.get().rotate(row, position);
            }
        }
    }
    let mut out = run.part_mut(program.values[attention.out].slot, text * attention.heads + head);
    out.resize(count * size, 0.0);
    scratch.attend(kernel, &Scores::new(attention, head), &mut out);
}
