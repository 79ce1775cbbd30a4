//! Payloads: MessagePack to Python's own objects, and back.

use nolag_protocol::msgpack::{self, MAX_DEPTH, Reader, Token, write};
use pyo3::exceptions::{PyOverflowError, PyRecursionError, PyTypeError, PyUnicodeEncodeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyMemoryView, PyNone, PyString, PyTuple,
    PyType,
};

/// The extension type that MessagePack reserves for points in time.
const TIMESTAMP: i8 = -1;

/// A MessagePack extension value that has no Python type of its own. It can be sent again.
#[pyclass(frozen, eq, hash, module = "nolag")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct ExtType {
    /// The application's number of the type, −128 to 127.
    #[pyo3(get)]
    code: i8,
    data: Vec<u8>,
}

#[pymethods]
impl ExtType {
    #[new]
    fn new(code: i8, data: Vec<u8>) -> Self {
        Self { code, data }
    }

    /// Its bytes.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.data)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("ExtType(code={}, data={})", self.code, self.data(py).repr()?))
    }
}

/// One MessagePack value of a Python object. What cannot be written is a `TypeError`, `ValueError` or `OverflowError` that
/// says what and where.
pub(crate) fn encode(value: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let mut out = Vec::with_capacity(128);
    encode_into(&mut out, value, 0)?;
    Ok(out)
}

/// Recurses once per level, so its frame is kept small: what needs room has functions of its own.
fn encode_into(out: &mut Vec<u8>, value: &Bound<'_, PyAny>, depth: usize) -> PyResult<()> {
    if let Ok(text) = value.cast::<PyString>() {
        encode_text(out, text)
    } else if let Ok(dict) = value.cast::<PyDict>() {
        encode_dict(out, dict, depth)
    } else if let Ok(list) = value.cast::<PyList>() {
        encode_list(out, list.len(), list.iter(), depth)
    } else if let Ok(tuple) = value.cast::<PyTuple>() {
        encode_list(out, tuple.len(), tuple.iter(), depth)
    } else {
        encode_scalar(out, value)
    }
}

fn encode_dict(out: &mut Vec<u8>, dict: &Bound<'_, PyDict>, depth: usize) -> PyResult<()> {
    deeper(depth)?;
    write::token(out, Token::Map(count(dict.len())?));
    for (key, value) in dict.iter() {
        encode_into(out, &key, depth + 1)?;
        encode_into(out, &value, depth + 1)?;
    }
    Ok(())
}

fn encode_list<'py>(
    out: &mut Vec<u8>,
    len: usize,
    items: impl Iterator<Item = Bound<'py, PyAny>>,
    depth: usize,
) -> PyResult<()> {
    deeper(depth)?;
    write::token(out, Token::Array(count(len)?));
    for item in items {
        encode_into(out, &item, depth + 1)?;
    }
    Ok(())
}

#[inline(never)]
fn encode_text(out: &mut Vec<u8>, text: &Bound<'_, PyString>) -> PyResult<()> {
    let utf8 = text.to_str().map_err(|fault| {
        if fault.is_instance_of::<PyUnicodeEncodeError>(text.py()) {
            PyValueError::new_err("text with a lone surrogate")
        } else {
            fault
        }
    })?;
    write::token(out, Token::Str(checked(utf8.as_bytes())?));
    Ok(())
}

#[inline(never)]
fn encode_scalar(out: &mut Vec<u8>, value: &Bound<'_, PyAny>) -> PyResult<()> {
    if value.is_none() {
        write::token(out, Token::Nil);
    } else if let Ok(flag) = value.cast::<PyBool>() {
        write::token(out, Token::Bool(flag.is_true()));
    } else if value.cast::<PyInt>().is_ok() {
        encode_int(out, value)?;
    } else if let Ok(number) = value.cast::<PyFloat>() {
        let number = number.value();
        if !number.is_finite() {
            // Not every broker can relay them (K-033).
            return Err(PyValueError::new_err(format!("the number {number}, which is not finite")));
        }
        write::token(out, Token::F64(number));
    } else if let Ok(bytes) = value.cast::<PyBytes>() {
        write::token(out, Token::Bin(checked(bytes.as_bytes())?));
    } else if let Ok(bytes) = value.cast::<PyByteArray>() {
        write::token(out, Token::Bin(checked(&bytes.to_vec())?));
    } else if value.cast::<PyMemoryView>().is_ok() {
        let bytes: Vec<u8> = value.call_method0("tobytes")?.extract()?;
        write::token(out, Token::Bin(checked(&bytes)?));
    } else if let Ok(ext) = value.cast::<ExtType>() {
        let ext = ext.get();
        write::token(out, Token::Ext(ext.code, checked(&ext.data)?));
    } else if value.is_instance(datetime(value.py())?)? {
        encode_datetime(out, value)?;
    } else {
        let kind = value.get_type();
        return Err(PyTypeError::new_err(format!("a value of type {}", kind.fully_qualified_name()?)));
    }
    Ok(())
}

fn encode_int(out: &mut Vec<u8>, value: &Bound<'_, PyAny>) -> PyResult<()> {
    if let Ok(number) = value.extract::<i64>() {
        let token = u64::try_from(number).map_or(Token::Int(number), Token::Uint);
        write::token(out, token);
    } else if let Ok(number) = value.extract::<u64>() {
        write::token(out, Token::Uint(number));
    } else {
        return Err(PyOverflowError::new_err("an integer outside -2**63 to 2**64-1"));
    }
    Ok(())
}

/// An aware `datetime` as the timestamp extension, to the microsecond.
fn encode_datetime(out: &mut Vec<u8>, value: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = value.py();
    if value.call_method0("utcoffset")?.is_none() {
        return Err(PyValueError::new_err("a datetime without a time zone"));
    }
    let since = value.sub(epoch(py)?)?;
    let field = |name| since.getattr(name)?.extract::<i64>();
    let seconds = field("days")? * 86_400 + field("seconds")?;
    let nanos = u32::try_from(field("microseconds")? * 1_000)
        .map_err(|_| PyValueError::new_err("a datetime out of range"))?;
    let mut bytes = Vec::with_capacity(12);
    match u64::try_from(seconds) {
        Ok(seconds) if nanos == 0 && u32::try_from(seconds).is_ok() => {
            bytes.extend_from_slice(&seconds.to_be_bytes()[4..]);
        }
        Ok(seconds) if seconds < 1 << 34 => {
            bytes.extend_from_slice(&(u64::from(nanos) << 34 | seconds).to_be_bytes());
        }
        _ => {
            bytes.extend_from_slice(&nanos.to_be_bytes());
            bytes.extend_from_slice(&seconds.to_be_bytes());
        }
    }
    write::token(out, Token::Ext(TIMESTAMP, &bytes));
    Ok(())
}

fn deeper(depth: usize) -> PyResult<()> {
    if depth < MAX_DEPTH {
        return Ok(());
    }
    Err(PyRecursionError::new_err(format!("lists and dicts nested deeper than {MAX_DEPTH}, or in a circle")))
}

fn count(len: usize) -> PyResult<u32> {
    u32::try_from(len).map_err(|_| PyValueError::new_err("more than 2**32-1 items"))
}

fn checked(bytes: &[u8]) -> PyResult<&[u8]> {
    count(bytes.len()).map(|_| bytes)
}

/// The Python object of one MessagePack value. Text that is not UTF-8 comes as bytes, a timestamp as an aware `datetime`,
/// any other extension as [`ExtType`].
pub(crate) fn decode<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let mut reader = Reader::new(bytes);
    decode_from(py, &mut reader, 0)
}

/// Recurses once per level, so its frame is kept small: what needs room has functions of its own.
fn decode_from<'py>(py: Python<'py>, reader: &mut Reader<'_>, depth: usize) -> PyResult<Bound<'py, PyAny>> {
    match token(reader)? {
        Token::Array(len) => decode_list(py, reader, len, depth),
        Token::Map(len) => decode_dict(py, reader, len, depth),
        scalar => decode_scalar(py, scalar),
    }
}

fn decode_list<'py>(
    py: Python<'py>,
    reader: &mut Reader<'_>,
    len: u32,
    depth: usize,
) -> PyResult<Bound<'py, PyAny>> {
    deeper(depth)?;
    // Not sized by what the header promises: that may be more than there is.
    let list = PyList::empty(py);
    for _ in 0..len {
        list.append(decode_from(py, reader, depth + 1)?)?;
    }
    Ok(list.into_any())
}

fn decode_dict<'py>(
    py: Python<'py>,
    reader: &mut Reader<'_>,
    len: u32,
    depth: usize,
) -> PyResult<Bound<'py, PyAny>> {
    deeper(depth)?;
    let dict = PyDict::new(py);
    for _ in 0..len {
        let key = decode_key(py, reader, depth + 1)?;
        dict.set_item(key, decode_from(py, reader, depth + 1)?)?;
    }
    Ok(dict.into_any())
}

#[inline(never)]
fn decode_scalar<'py>(py: Python<'py>, token: Token<'_>) -> PyResult<Bound<'py, PyAny>> {
    Ok(match token {
        Token::Bool(flag) => PyBool::new(py, flag).to_owned().into_any(),
        Token::Uint(number) => number.into_pyobject(py)?.into_any(),
        Token::Int(number) => number.into_pyobject(py)?.into_any(),
        Token::F32(number) => PyFloat::new(py, number.into()).into_any(),
        Token::F64(number) => PyFloat::new(py, number).into_any(),
        Token::Str(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => PyString::new(py, text).into_any(),
            Err(_) => PyBytes::new(py, bytes).into_any(),
        },
        Token::Bin(bytes) => PyBytes::new(py, bytes).into_any(),
        Token::Ext(code, bytes) => match (code == TIMESTAMP).then(|| timestamp(py, bytes)).flatten() {
            Some(time) => time,
            None => Bound::new(py, ExtType { code, data: bytes.to_vec() })?.into_any(),
        },
        // Containers are not scalars.
        Token::Nil | Token::Array(_) | Token::Map(_) => PyNone::get(py).to_owned().into_any(),
    })
}

/// A key of a dict: interned where it is text, for the same few come in every message; lists and dicts, which cannot be keys, as
/// tuples.
fn decode_key<'py>(py: Python<'py>, reader: &mut Reader<'_>, depth: usize) -> PyResult<Bound<'py, PyAny>> {
    let mut ahead = reader.clone();
    if let Token::Str(bytes) = token(&mut ahead)?
        && bytes.len() <= 64
        && let Ok(text) = std::str::from_utf8(bytes)
    {
        *reader = ahead;
        return Ok(PyString::intern(py, text).into_any());
    }
    let key = decode_from(py, reader, depth)?;
    hashable(key)
}

fn hashable(key: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
    let py = key.py();
    let items = if let Ok(list) = key.cast::<PyList>() {
        list.iter().map(hashable).collect::<PyResult<Vec<_>>>()?
    } else if let Ok(dict) = key.cast::<PyDict>() {
        let pair = |(key, value)| Ok(PyTuple::new(py, [hashable(key)?, hashable(value)?])?.into_any());
        dict.iter().map(pair).collect::<PyResult<Vec<_>>>()?
    } else {
        return Ok(key);
    };
    Ok(PyTuple::new(py, items)?.into_any())
}

fn token<'a>(reader: &mut Reader<'a>) -> PyResult<Token<'a>> {
    reader.token().map_err(|fault: msgpack::Error| PyValueError::new_err(fault.to_string()))
}

static TIMEDELTA: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// An aware `datetime`, where Python's has such a time.
fn timestamp<'py>(py: Python<'py>, bytes: &[u8]) -> Option<Bound<'py, PyAny>> {
    let (seconds, nanos): (i64, u32) = match bytes.len() {
        4 => (u32::from_be_bytes(bytes.try_into().ok()?).into(), 0),
        8 => {
            let word = u64::from_be_bytes(bytes.try_into().ok()?);
            (i64::try_from(word & ((1 << 34) - 1)).ok()?, u32::try_from(word >> 34).ok()?)
        }
        12 => {
            let (nanos, seconds) = bytes.split_at(4);
            (i64::from_be_bytes(seconds.try_into().ok()?), u32::from_be_bytes(nanos.try_into().ok()?))
        }
        _ => return None,
    };
    let since =
        TIMEDELTA.import(py, "datetime", "timedelta").ok()?.call1((0, seconds, nanos / 1_000)).ok()?;
    epoch(py).ok()?.add(since).ok()
}

fn datetime(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static DATETIME: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    DATETIME.import(py, "datetime", "datetime")
}

fn epoch(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static EPOCH: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = || {
        let utc = py.import("datetime")?.getattr("timezone")?.getattr("utc")?;
        Ok::<_, PyErr>(datetime(py)?.call1((1970, 1, 1, 0, 0, 0, 0, utc))?.unbind())
    };
    Ok(EPOCH.get_or_try_init(py, make)?.bind(py))
}
