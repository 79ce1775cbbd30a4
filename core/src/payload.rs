//! Payloads of Rust programs: any value of serde, as MessagePack.

use bytes::Bytes;
use nolag_protocol::msgpack::{Reader, Token, single};
use serde::{Serialize, de::DeserializeOwned};

use crate::error::Error;
use crate::event::Message;

/// A value as MessagePack, structs as maps. NaN and infinities are refused: not every broker can relay them (K-033).
pub(crate) fn encode<T: Serialize + ?Sized>(topic: &str, value: &T) -> Result<Bytes, Error> {
    let failed = |message: String| Error::Encode { op: "encode", topic: Some(topic.to_owned()), message };
    let bytes = rmp_serde::to_vec_named(value).map_err(|fault| failed(fault.to_string()))?;
    single(&bytes).map_err(|fault| failed(fault.to_string()))?;
    let mut reader = Reader::new(&bytes);
    while let Ok(token) = reader.token() {
        let finite = match token {
            Token::F32(n) => n.is_finite(),
            Token::F64(n) => n.is_finite(),
            _ => true,
        };
        if !finite {
            return Err(failed("a number is not finite".to_owned()));
        }
    }
    Ok(bytes.into())
}

impl Message {
    /// The payload as a value of serde.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Error> {
        rmp_serde::from_slice(&self.data).map_err(|fault| Error::Encode {
            op: "decode",
            topic: Some(self.topic.to_string()),
            message: fault.to_string(),
        })
    }

    /// The payload's bytes, if it is bytes or text: some brokers deliver bytes that are UTF-8 as text (K-036).
    pub fn bytes(&self) -> Option<Bytes> {
        match Reader::new(&self.data).token() {
            Ok(Token::Bin(bytes) | Token::Str(bytes)) => Some(self.data.slice_ref(bytes)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(data: impl Into<Bytes>) -> Message {
        Message {
            delivery: 1,
            topic: "t".into(),
            data: data.into(),
            is_replay: false,
            ack_mode: crate::options::AckMode::Auto,
            requires_ack: false,
            frame: Bytes::new(),
            places: crate::event::Places::default(),
        }
    }

    /// K-034, K-035, FC-17, FC-18: integers of 64 bits, text, bytes and floats come back as they were; what does not fit is an error.
    #[test]
    fn there_and_back() {
        fn back<T: Serialize + DeserializeOwned>(value: &T) -> Result<T, Error> {
            message(encode("t", value)?).decode()
        }
        for n in [1, 9_007_199_254_740_991, 9_007_199_254_740_993, u64::MAX] {
            assert_eq!(back(&n).unwrap(), n);
        }
        assert_eq!(message(&[0xcf, 0, 0, 0, 0, 0, 0, 0, 1][..]).decode::<u64>().unwrap(), 1, "however wide");
        assert_eq!(back(&i64::MIN).unwrap(), i64::MIN);
        assert!(message(encode("t", &u64::MAX).unwrap()).decode::<i64>().is_err());
        for text in ["snö ☃", ""] {
            assert_eq!(back(&text.to_owned()).unwrap(), text);
        }
        assert!(message(&[0xca, 0x7f, 0xc0, 0, 0][..]).decode::<f64>().unwrap().is_nan());
        assert_eq!(back(&(1.0, "a".to_owned(), None::<u8>)).unwrap(), (1.0, "a".to_owned(), None));
    }

    /// K-036.
    #[test]
    fn bytes_come_as_bytes_or_as_text() {
        let message = |data: &'static [u8]| message(data);
        assert_eq!(message(&[0xc4, 2, 0, 0xff]).bytes().as_deref(), Some(&[0, 0xff][..]));
        assert_eq!(message(&[0xa2, b'o', b'k']).bytes().as_deref(), Some(&b"ok"[..]));
        assert_eq!(message(&[0xc4, 0]).bytes().as_deref(), Some(&[][..]));
        assert_eq!(message(&[0x91, 1]).bytes(), None);
    }

    /// K-033.
    #[test]
    fn what_cannot_be_written() {
        assert!(encode("t", &vec![1.0, f64::NAN]).is_err());
        assert!(encode("t", &f32::INFINITY).is_err());
        let error = encode("t", &f64::NEG_INFINITY).unwrap_err();
        assert_eq!((error.code(), error.topic()), ("encode", Some("t")));
        assert_eq!(&encode("t", &(1, "a")).unwrap()[..], [0x92, 1, 0xa1, b'a']);
    }
}
