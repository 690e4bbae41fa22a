//! Executes attention stages.

use std::ops::Range;

use super::{Run, rows::copy_rows};
use crate::{
    attention::{Head, Scores},
    kernel::{Kernel, Rows, RowsMut},
    numbers::Numbers,
    program::{Attention, Per, Program, View},
};

/// Attention for one text and head.
#[inline(always)]
pub fn attend<K: Kernel>(
    kernel: K,
    run: &Run,
    program: &Program,
    attention: &Attention,
    text: usize,
    head: usize,
    scratch: &mut Head,
) {
    let size = attention.queries.width / attention.heads;
    let key_head = head * attention.key_heads / attention.heads;
    let tokens = run.attended[text].clone();
    let queries = match program.values[attention.queries.value].per {
        Per::Token => run.texts[text].clone(),
        Per::Text => text..text + 1,
    };
    let count = queries.len();
    let out = || {
        run.part_mut(
            program.values[attention.out].slot,
            text * attention.heads + head,
        )
    };
    if tokens.is_empty() {
        let mut out = out();
        out.clear();
        return out.resize(count * size, 0.0);
    }
    scratch.size = size;
    let view = |view: View, head: usize| View {
        offset: view.offset + head * size,
        width: size,
        ..view
    };
    copy_head(
        run,
        program,
        view(attention.queries, head),
        queries,
        size,
        &mut scratch.queries,
    );
    copy_head(
        run,
        program,
        view(attention.keys, key_head),
        tokens.clone(),
        size,
        &mut scratch.keys,
    );
    let stride = Head::value_stride(size);
    copy_head(
        run,
        program,
        view(attention.values, key_head),
        tokens,
        stride,
        &mut scratch.values,
    );
    if let Some(rotary) = attention.rotary.map(|rotary| &program.rotaries[rotary]) {
        let table = rotary.table(scratch.keys.len() / size);
        for rows in [&mut scratch.queries, &mut scratch.keys] {
            for (position, row) in rows.chunks_exact_mut(size).enumerate() {
                table.get().rotate(row, position);
            }
        }
        if let Some(growth) = rotary.settings().growth {
            growth.apply(&mut scratch.queries, size);
        }
    }
    let mut out = out();
    out.resize(count * size, 0.0);
    scratch.attend(kernel, &Scores::new(attention, head), &mut out);
}

/// Copies a head's columns into rows that are `stride` numbers apart.
#[inline(always)]
fn copy_head(
    run: &Run,
    program: &Program,
    view: View,
    rows: Range<usize>,
    stride: usize,
    out: &mut Numbers,
) {
    let value = program.values[view.value];
    out.resize(rows.len() * stride, 0.0);
    let mut start = rows.start;
    while start < rows.end {
        let (block, first) = (start / run.block_rows, start % run.block_rows);
        let count = (rows.end - start).min(run.block_rows - first);
        let part = run.part(value.slot, block);
        let part = &part[first * value.width + view.offset..];
        let out = RowsMut::new(&mut out[(start - rows.start) * stride..], stride);
        copy_rows([count, view.width], Rows::new(part, value.width), out);
        start += count;
    }
}
