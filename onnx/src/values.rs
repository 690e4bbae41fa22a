//! Creates ONNX Runtime values and reorders their rows.

use std::fmt::Debug;

use ort::value::{DynValue, PrimitiveTensorElementType, Tensor as OrtTensor};

use super::row_permutation::RowPermutation;
use kivu_base::{Error, Result, tensor::ElementType};
use kivu_core::backend::TensorSpec;

fn failed(error: ort::Error) -> Error {
    Error::inference_because("cannot create a tensor for the next step", error)
}

pub fn tensor<T>(shape: Vec<usize>, values: Vec<T>) -> Result<DynValue>
where
    T: PrimitiveTensorElementType + Clone + Debug + 'static,
{
    Ok(OrtTensor::from_array((shape, values))
        .map_err(failed)?
        .into_dyn())
}

/// A state's initial value: zeros, with length 0 along free axes.
pub fn zeros(spec: &TensorSpec, rows: usize) -> Result<DynValue> {
    let others = spec
        .shape
        .iter()
        .skip(1)
        .map(|side| usize::try_from(*side).unwrap_or(0));
    let shape: Vec<usize> = std::iter::once(rows).chain(others).collect();
    let size = shape.iter().product();
    match spec.element_type {
        ElementType::Fp32 => tensor(shape, vec![0.0_f32; size]),
        ElementType::Int32 => tensor(shape, vec![0_i32; size]),
        ElementType::Int64 => tensor(shape, vec![0_i64; size]),
        ElementType::Bytes => Err(Error::model(format!(
            "expected a numeric state, but found strings in `{}`",
            spec.name
        ))),
    }
}

/// Copies `value`; row `i` is the row `rows[i]`.
pub fn gather(value: &DynValue, rows: &[usize]) -> Result<DynValue> {
    if value.try_extract_tensor::<f32>().is_ok() {
        gather_of::<f32>(value, rows)
    } else if value.try_extract_tensor::<i64>().is_ok() {
        gather_of::<i64>(value, rows)
    } else {
        gather_of::<i32>(value, rows)
    }
}

fn gather_of<T>(value: &DynValue, rows: &[usize]) -> Result<DynValue>
where
    T: PrimitiveTensorElementType + Copy + Debug + 'static,
{
    let (shape, values) = value.try_extract_tensor::<T>().map_err(failed)?;
    let others = || shape.iter().skip(1).map(|side| *side as usize);
    let width: usize = others().product();
    let mut gathered = Vec::with_capacity(rows.len() * width);
    for row in rows {
        let values = values.get(row * width..(row + 1) * width);
        gathered.extend_from_slice(values.ok_or_else(|| no_row(*row))?);
    }
    tensor(
        std::iter::once(rows.len()).chain(others()).collect(),
        gathered,
    )
}

/// Reorders a value's rows without changing their number, in place if it contains floats. `permutation` is the
/// [`RowPermutation`] for `rows`.
pub fn permute(value: &mut DynValue, rows: &[usize], permutation: &RowPermutation) -> Result<()> {
    if value.try_extract_tensor::<f32>().is_err() {
        *value = gather(value, rows)?;
        return Ok(());
    }
    let (shape, values) = value.try_extract_tensor_mut::<f32>().map_err(failed)?;
    let width: usize = shape.iter().skip(1).map(|side| *side as usize).product();
    if let Some(beyond) = rows.iter().find(|row| (*row + 1) * width > values.len()) {
        return Err(no_row(*beyond));
    }
    permutation.apply(values, width);
    Ok(())
}

fn no_row(row: usize) -> Error {
    Error::inference(format!(
        "expected row {row} of a state, but found fewer rows"
    ))
}
