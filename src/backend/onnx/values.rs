//! The runtime's own values: made, and their rows put in another order.

use ort::value::{DynValue, PrimitiveTensorElementType, Tensor as OrtTensor};

use super::row_permutation::RowPermutation;
use crate::{
    backend::TensorSpec,
    error::{Error, Result},
    tensor::ElementType,
};

fn failed(error: ort::Error) -> Error {
    Error::inference_because("a tensor between two steps cannot be made", error)
}

/// Integers of the given shape.
pub(super) fn integers(shape: &[usize], values: Vec<i64>) -> Result<DynValue> {
    make(shape.to_vec(), values)
}

/// What a state holds before the first step: nothing along a free axis, zeros along a fixed one.
pub(super) fn zeros(spec: &TensorSpec, rows: usize) -> Result<DynValue> {
    let others = spec.shape.iter().skip(1).map(|side| usize::try_from(*side).unwrap_or(0));
    let shape: Vec<usize> = std::iter::once(rows).chain(others).collect();
    let size = shape.iter().product();
    match spec.element_type {
        ElementType::Fp32 => make(shape, vec![0.0_f32; size]),
        ElementType::Int32 => make(shape, vec![0_i32; size]),
        ElementType::Int64 => make(shape, vec![0_i64; size]),
        ElementType::Bytes => {
            Err(Error::model(format!("expected a state of numbers, but `{}` is of strings", spec.name)))
        }
    }
}

/// A value whose row `i` is the row `rows[i]` of `value`.
pub(super) fn gather(value: &DynValue, rows: &[usize]) -> Result<DynValue> {
    if value.try_extract_tensor::<f32>().is_ok() {
        return gather_of::<f32>(value, rows);
    }
    if value.try_extract_tensor::<i64>().is_ok() {
        return gather_of::<i64>(value, rows);
    }
    gather_of::<i32>(value, rows)
}

/// The same in the value's own memory, where it has as many rows as before; `moves` are those of `rows`.
pub(super) fn gather_in_place(value: &mut DynValue, rows: &[usize], moves: &RowPermutation) -> Result<()> {
    if value.try_extract_tensor::<f32>().is_err() {
        *value = gather(value, rows)?;
        return Ok(());
    }
    let (shape, values) = value.try_extract_tensor_mut::<f32>().map_err(failed)?;
    let size: usize = shape.iter().skip(1).map(|side| *side as usize).product();
    if let Some(beyond) = rows.iter().find(|row| (*row + 1) * size > values.len()) {
        return Err(no_row(*beyond));
    }
    moves.apply(values, size);
    Ok(())
}

fn no_row(row: usize) -> Error {
    Error::inference(format!("expected a row {row} of a state, but found none"))
}

fn gather_of<T>(value: &DynValue, rows: &[usize]) -> Result<DynValue>
where
    T: PrimitiveTensorElementType + Copy + std::fmt::Debug + 'static,
{
    let (shape, values) = value.try_extract_tensor::<T>().map_err(failed)?;
    let mut shape: Vec<usize> = shape.iter().map(|side| *side as usize).collect();
    let size: usize = shape.iter().skip(1).product();
    let mut gathered = Vec::with_capacity(rows.len() * size);
    for row in rows {
        gathered.extend_from_slice(values.get(row * size..(row + 1) * size).ok_or_else(|| no_row(*row))?);
    }
    if let Some(count) = shape.first_mut() {
        *count = rows.len();
    }
    make(shape, gathered)
}

fn make<T>(shape: Vec<usize>, values: Vec<T>) -> Result<DynValue>
where
    T: PrimitiveTensorElementType + Clone + std::fmt::Debug + 'static,
{
    Ok(OrtTensor::from_array((shape, values)).map_err(failed)?.into_dyn())
}
