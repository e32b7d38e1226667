//! Addresses as ZeroMQ writes them, and vLLM's rule of who listens.

use std::fmt;
use std::path::PathBuf;

use super::KvEventsError;

/// A parsed address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// `tcp://HOST:PORT`; the host is a name, an address, or `*` for all.
    Tcp { host: String, port: u16 },
    /// `ipc://PATH`: a Unix socket.
    Ipc(PathBuf),
}

impl Endpoint {
    /// Reads an address. The rank is added to the port, or put behind the path, as vLLM does.
    pub(super) fn parse(text: &str, rank: u16) -> Result<Self, KvEventsError> {
        let fault = |reason| KvEventsError::Endpoint {
            endpoint: text.to_owned(),
            reason,
        };
        if let Some(path) = text.strip_prefix("ipc://") {
            return match (path, rank) {
                ("", _) => Err(fault("the path is empty")),
                (path, 0) => Ok(Self::Ipc(path.into())),
                (path, rank) => Ok(Self::Ipc(format!("{path}_dp{rank}").into())),
            };
        }
        let address = text
            .strip_prefix("tcp://")
            .ok_or_else(|| fault("no transport that is spoken here"))?;
        let (host, port) = address.rsplit_once(':').ok_or_else(|| fault("no port"))?;
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        if host.is_empty() {
            return Err(fault("no host"));
        }
        let port: u16 = port
            .parse()
            .map_err(|_| fault("the port is no number below 65536"))?;
        // Port 0 lets the system choose; there is nothing to add to.
        let port = match port {
            0 => 0,
            port => port
                .checked_add(rank)
                .ok_or_else(|| fault("the port and the rank together are above 65535"))?,
        };
        Ok(Self::Tcp {
            host: host.to_owned(),
            port,
        })
    }

    /// Whether the publisher listens here, rather than connecting: vLLM's rule, "bind what is stable".
    pub(super) fn listens(&self) -> bool {
        match self {
            Self::Tcp { host, .. } => host == "*" || host.contains("::"),
            Self::Ipc(_) => true,
        }
    }

    /// The host that a listener gives to the system.
    pub(super) fn bind_host(host: &str) -> &str {
        if host == "*" { "0.0.0.0" } else { host }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Self::Ipc(path) => write!(f, "ipc://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[track_caller]
    fn check(text: &str, rank: u16, shown: &str, listens: bool) {
        let endpoint = Endpoint::parse(text, rank).unwrap();
        assert_eq!(
            (endpoint.to_string().as_str(), endpoint.listens()),
            (shown, listens)
        );
    }

    #[test]
    fn stars_and_paths_listen_and_hosts_are_connected_to() {
        check("tcp://*:5557", 0, "tcp://*:5557", true);
        check("tcp://[::]:5557", 0, "tcp://[::]:5557", true);
        check("tcp://:::5557", 0, "tcp://[::]:5557", true);
        check("ipc:///run/glim.sock", 0, "ipc:///run/glim.sock", true);
        check(
            "tcp://indexer.llm-d:5557",
            0,
            "tcp://indexer.llm-d:5557",
            false,
        );
        check("tcp://127.0.0.1:5557", 0, "tcp://127.0.0.1:5557", false);
    }

    #[test]
    fn the_rank_moves_the_port_and_the_path() {
        check("tcp://*:5557", 3, "tcp://*:5560", true);
        check("tcp://*:0", 3, "tcp://*:0", true);
        check("ipc:///run/glim.sock", 3, "ipc:///run/glim.sock_dp3", true);
    }

    #[test]
    fn what_is_no_address_is_told() {
        for text in [
            "",
            "5557",
            "tcp://",
            "tcp://*",
            "tcp://*:",
            "tcp://:5557",
            "tcp://*:65536",
            "tcp://*:*",
            "inproc://x",
            "ipc://",
        ] {
            let error = Endpoint::parse(text, 0).unwrap_err();
            assert!(
                error.to_string().contains("expected tcp://HOST:PORT"),
                "{error}"
            );
        }
        assert!(Endpoint::parse("tcp://*:65535", 1).is_err());
    }
}
