"""Every environment variable of NCCL, as data: who reads it, since which version, and which values it accepts.

The table is made from the source of NCCL 2.30.7 (every NCCL_PARAM, DEFINE_NCCL_PARAM and ncclGetEnv), the libraries of
2.31.2 and 2.32.3 (every function ncclParam*, and what it returns) and the user guide of 2.32. The 62 release tags from
2.3.5 to 2.30.7 and these libraries give the versions in which a variable came and went.
Standard library only; laggard.nccl.variables looks variables up by name.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

Version = tuple[int, ...]

TABLE_VERSION: Final[Version] = (2, 32, 3)
"""The release that the table describes. A variable that the table lacks may be newer."""


class Category(enum.Enum):
    """The purpose of a variable. The values are those of the table's second column."""

    SAFETY = "A1"
    """Correctness, safety and identity: not to be tuned."""
    OFF_SWITCH = "A2"
    """Switches something off."""
    SITE = "B"
    """Facts of the site: which network, which device."""
    TUNING = "C"
    """Algorithm, protocol, channels, transport: what a tuner may try."""
    SOCKETS = "C3"
    """The variables for sockets only."""
    OBSERVABILITY = "D"
    """Logs, plugins, observability."""
    OBSOLETE = "E"
    """Deprecated or removed."""
    DEVICE_API = "F"
    """Device, symmetric and one-sided interfaces of 2.27 and later."""


class Variable(NamedTuple):
    """One row of the table."""

    name: str
    category: Category
    since: str
    """The first version that reads the variable; empty: 2.3 or older."""
    removed: str
    """The first version that no longer reads it; empty: none."""
    default: str
    """Empty: the variable is unset; `auto`: NCCL decides."""
    values: str
    """A range (`0..7`, `1..`), words separated by commas, `int`, or the name of a grammar (`algo`, `proto`, `level`,
    `netdevs`); empty: any text."""
    documented: bool
    """True where it is in NCCL's user guide."""
    note: str


# name | category | since | removed | default | values | d: in the user guide | note
CURRENT: Final = """\
NCCL_CHECKS_DISABLE|A1|2.0.5|2.2.12|||d|Switched argument checks off; not read any more
NCCL_CHECK_MODE|A1|2.29.7||DEFAULT|DEFAULT,DEBUG_LOCAL,DEBUG_GLOBAL|d|How far arguments of calls are checked
NCCL_CHECK_POINTERS|A1|2.2.12||0|int|d|Checks the pointers of every call, which costs time
NCCL_CHUNK_SIZE|A1|2.12||0|int||Undocumented; large values gave wrong results
NCCL_COMM_BLOCKING|A1|2.14||auto|0..1|d|Whether calls on a communicator block
NCCL_COMM_ID|A1||||||Address where ranks meet, in place of a unique id
NCCL_COMM_SHRINK_SHARE_RESOURCES|A1|2.27||auto|int||A shrunken communicator shares its parent's buffers
NCCL_COMM_SPLIT_SHARE_RESOURCES|A1|2.18||auto|int||A split communicator shares its parent's buffers
NCCL_DISABLE_MEM_MANAGER|A1|2.29||0|int||Switches the memory manager off
NCCL_ELASTIC_BUFFER_REGISTER|A1|2.30||1|int||Registration of buffers that grow
NCCL_ENABLE_VERSION_CHECK|A1|2.29||1|int||Compares the header's version with the library's
NCCL_ENQUEUE_REARCH_ENABLE|A1|2.31||0|int||Another way of choosing and launching collectives
NCCL_GDR_FLUSH_DISABLE|A1|||0|int||Leaves out the flush after a GPUDirect write: data may be stale
NCCL_GRAPH_HELPER_DISABLE|A1|2.11||0|int||Leaves out the helper of CUDA graph launches
NCCL_GRAPH_MIXING_SUPPORT|A1|2.13||1|0..1|d|Captured and plain launches on one communicator
NCCL_GRAPH_REGISTER|A1|2.11||1|0..1|d|Registers buffers of captured graphs
NCCL_GRAPH_STREAM_ORDERING|A1|2.30||auto|0..1|d|Orders captured launches with those of streams
NCCL_GROUP_CUDA_STREAM|A1|||0|int||Stream that grouped launches use
NCCL_HOSTID|A1|2.5|||||Host identity: equal values are taken for one host
NCCL_IB_DATA_DIRECT|A1|2.27||1|int||Data Direct path of newer ConnectX
NCCL_IB_OOO_RQ|A1|2.30||0|int|d|Receive requests may complete out of order
NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS|A1|2.29||auto|int||Receive requests are posted ahead
NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME|A1|2.29||auto|int||How a receiver matches messages
NCCL_IB_RETURN_ASYNC_EVENTS|A1|2.23||1|int|d|Asynchronous verbs events end the operation
NCCL_IB_USE_INLINE|A1|2.8||0|int||Small sends carry their data inline
NCCL_IGNORE_COLLNET_MISMATCH|A1|2.30||0|int|d|Goes on where CollNet devices differ between ranks
NCCL_IGNORE_DISABLED_P2P|A1|2.12||0|int||Goes on where P2P over NVLink is off
NCCL_IGNORE_NET_MISMATCH|A1|2.30||1|int|d|Goes on where network devices differ between ranks
NCCL_IPC_USE_ABSTRACT_SOCKET|A1|2.29||1|int|d|Abstract Unix sockets for memory handles
NCCL_LAUNCH_MODE|A1|2.1.0||PARALLEL|PARALLEL,GROUP|d|How kernels of one process are launched
NCCL_LAUNCH_ORDER_IMPLICIT|A1|2.26||auto|int|d|Orders launches of several communicators
NCCL_LAUNCH_RACE_FATAL|A1|2.26||1|int|d|A race between launches is an error
NCCL_LEGACY_CUDA_REGISTER|A1|2.24||0|int|d|Registers memory of cudaMalloc the old way
NCCL_LL128_C2C|A1|2.27||1|int||LL128 across a C2C link
NCCL_LOCAL_REGISTER|A1|2.19||1|0..1|d|Registers buffers of plain launches
NCCL_MNNVL_CLIQUE_ID|A1|2.23||-1|int|d|Sets the NVLink clique of a node by hand
NCCL_MNNVL_CROSS_CLIQUE|A1|2.30||0|int||Joins NVLink cliques
NCCL_MNNVL_UUID|A1|2.25||-1|int|d|Sets the NVLink domain of a node by hand
NCCL_MULTI_RANK_GPU_ENABLE|A1|2.30||0|int|d|Several ranks on one GPU; experimental
NCCL_MULTI_SEGMENT_REGISTER|A1|2.29||1|int||Registers buffers of several segments
NCCL_NET_FORCE_FLUSH|A1|2.15||0|int||Flushes after GPUDirect receives even if not needed
NCCL_NET_OPTIONAL_RECV_COMPLETION|A1|2.24||1|int||Receive completions that nobody waits for are left out
NCCL_NO_CACHE|A1|2.29|||||Variables that are read anew each time
NCCL_NVLS_UB_SIZE|A1|2.32||auto|int||Bytes that NVLS keeps for users' buffers; 0 registers none
NCCL_P2P_DIRECT_DISABLE|A1|2.12||0|int|d|No direct access to a peer's buffers in one process
NCCL_P2P_EPOCH_ENABLE|A1|2.29||1|int||Epochs of point-to-point schedules
NCCL_PROTO|A1|2.5|||proto|d|Protocols that may be chosen; LL128 must not be forced
NCCL_PROXY_CPUSET|A1|2.28|||||CPUs of the proxy threads
NCCL_RUNTIME_CONNECT|A1|2.22||1|0..1|d|Connects peers on first use instead of at the start
NCCL_SET_CPU_STACK_SIZE|A1|2.28||1|int||Stack of NCCL's threads
NCCL_SET_STACK_SIZE|A1|2.9||0|0..1|d|Sets the CUDA stack size ahead, against hangs
NCCL_SHADOW_MEMPOOL_MAX_SIZE|A1|2.30||1073741824|int||Bytes that the shadow pool keeps
NCCL_SINGLE_PROC_MEM_REG_ENABLE|A1|2.28||0|int||Registration with several GPUs in one process
NCCL_SOCKET_MAGIC|A1|2.30||||d|Number that keeps foreign connections out
NCCL_WORK_ARGS_BYTES|A1|2.22||all|int||Bytes of kernel arguments for work
NCCL_WORK_FIFO_BYTES|A1|2.22||1048576|int||Bytes of the work queue
NCCL_CUMEM_ENABLE|A2|2.18||auto|int|d|Buffers from cuMem; needed by NVLS and MNNVL
NCCL_CUMEM_HOST_ENABLE|A2|2.23||-1|int|d|Host buffers from cuMem
NCCL_DMABUF_ENABLE|A2|2.13||1|0..1|d|GPUDirect through DMA-BUF
NCCL_GDRCOPY_ENABLE|A2|2.9||0|int|d|Uses GDRCopy
NCCL_GDRCOPY_FIFO_ENABLE|A2|2.9||1|int|d|GDRCopy for queues
NCCL_GDRCOPY_FLUSH_ENABLE|A2|2.9||0|int|d|GDRCopy for flushes
NCCL_GDRCOPY_SYNC_ENABLE|A2|2.12||1|int|d|GDRCopy for synchronisation
NCCL_GDRCOPY_USE_INTERNAL_DMABUF|A2|2.31||0|int||GDRCopy's work done by DMA-BUF; 2 where that is possible
NCCL_IB_DISABLE|A2|||0|int|d|Switches InfiniBand and RoCE off: sockets are used
NCCL_NET_DISABLE_INTRA|A2|2.12||0|int||No network transport inside a node
NCCL_NVB_DISABLE|A2|2.9.9||0|int|d|No NVLink path through another GPU
NCCL_P2P_DISABLE|A2|||0|int|d|Switches direct GPU-to-GPU copies off, NVLink too
NCCL_PXN_DISABLE|A2|2.12||0|int|d|No sending through the GPU next to the NIC
NCCL_RMA_DISABLE|A2|2.30||0|int||Switches one-sided operations off
NCCL_SHM_DISABLE|A2|||0|int|d|No shared memory between ranks of a node
NCCL_TOPO_SPLIT_MLOPART|A2|2.30||1|int||Shows GPU partitions apart in the topology
NCCL_CONF_FILE|B|2.23||||d|Path of the settings file, in place of ~/.nccl.conf
NCCL_CONNECT_ROUND_MAX_PEERS|B|2.19||128|int||Peers connected in one round
NCCL_ENV_PLUGIN|B|2.28||||d|Library that supplies variables
NCCL_GIN_IB_TC|B|2.30||-1|int||Traffic class of GPU-initiated traffic
NCCL_GRAPH_FILE|B|2.6|||||Fixed channel graph to load
NCCL_IBVERBS_LIB|B|2.30|||||Path of the verbs library
NCCL_IB_ADDR_FAMILY|B|2.21||AF_INET|AF_INET,AF_INET6|d|Address family of the GID that is chosen
NCCL_IB_ADDR_RANGE|B|2.21||||d|Address range of the GID that is chosen
NCCL_IB_DEVICE_PCI_ORDER|B|2.29||1|int||Orders devices by PCI address
NCCL_IB_ECE_ENABLE|B|2.23||1|0..1|d|Enhanced connection establishment
NCCL_IB_EVENT_BASED_LB|B|2.31||0|int|d|Load balancing by events
NCCL_IB_EVENT_BASED_LB_REMOTE|B|2.31||1|int||Load balancing by the peer's events
NCCL_IB_FIFO_TC|B|2.22.3||-1|-1..255|d|RoCE traffic class of control messages
NCCL_IB_GID_INDEX|B|2.1.4||-1|-1..255|d|RoCE GID index; chosen by NCCL itself since 2.21
NCCL_IB_HCA|B|||||d|RDMA devices to use: names, prefixes, ^ to exclude, = to be exact
NCCL_IB_MERGE_NICS|B|2.20||1|int|d|Joins the ports of a dual-port NIC
NCCL_IB_MERGE_VFS|B|2.18||1|int||Joins virtual functions
NCCL_IB_MQP_RETRY_ALL|B|2.24||0|int||Retries every failure of queue pair changes
NCCL_IB_MQP_RETRY_CNT|B|2.24||34|int||Retries of queue pair changes
NCCL_IB_MQP_RETRY_SLEEP_MSEC|B|2.24||100|int||Pause between them, ms
NCCL_IB_PKEY|B|2.8||0|int|d|Partition key index
NCCL_IB_PKEY_VALUE|B|2.31||-1|int|d|Partition key by its value
NCCL_IB_QUERY_PORT_SPEED|B|2.30||1|int||Asks the device for its port speed
NCCL_IB_RAIL_POLICY|B|2.32||auto||d|How the ports of ConnectX-9 form rails
NCCL_IB_RESILIENCY_PORT_FAILOVER|B|2.29||0|int||Moves traffic off a failed port
NCCL_IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS|B|2.29||1|int||Attempts to move it
NCCL_IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY|B|2.29||10|int||Delay before probing the port
NCCL_IB_RESILIENCY_PORT_RECOVERY|B|2.30||0|int||Takes a recovered port back into use
NCCL_IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT|B|2.30||5000|int||Wait for its acknowledgement, ms
NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL|B|2.30||500|int||Pause between alive messages, ms
NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE|B|2.30||5|int||Alive messages in a batch
NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE|B|2.30||5|int||Alive messages in a row that count
NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT|B|2.30||4000|int||Wait for an alive message, ms
NCCL_IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX|B|2.30||20|int||Attempts to recover a port
NCCL_IB_RESILIENCY_PORT_RECOVERY_START_DELAY|B|2.30||200|int||Delay before recovery, ms
NCCL_IB_RETRY_CNT|B|2.1.15||7|0..7|d|Transport retries of a queue pair
NCCL_IB_ROCE_VERSION_NUM|B|2.21||2|1..2|d|RoCE version of the GID that is chosen
NCCL_IB_ROUTABLE_FLID_GID_INDEX|B|2.22||1|int||GID index for routable LIDs
NCCL_IB_SL|B|2.1.4||-1|-1..15|d|InfiniBand service level
NCCL_IB_SORT_MERGE_NICS|B|2.32||1|int||Sorts NICs before they are joined
NCCL_IB_SUBNET_AWARE_ROUTING|B|2.30||0|int||Pairs devices of one subnet
NCCL_IB_SUBNET_PREFIX_LEN|B|2.30||24|int||Length of that subnet's prefix
NCCL_IB_TC|B|2.1.15||-1|-1..255|d|Traffic class: on RoCE it selects the lossless priority
NCCL_IB_TIMEOUT|B|||20|0..31|d|Queue pair timeout: 4.096 us times 2 to this power
NCCL_IGNORE_CPU_AFFINITY|B|2.4.6||0|int|d|NCCL's threads leave the job's CPU set for the GPU's
NCCL_MNNVL_ENABLE|B|2.21||2|0..2|d|NVLink between nodes
NCCL_MNNVL_RAIL_PER_HOST|B|2.28||-1|int||Rails counted for each host of an NVLink domain
NCCL_MNNVL_SCATTER_NETS_ENABLE|B|2.27||1|int||Spreads network devices over an NVLink domain
NCCL_NET|B|2.10||||d|Network to use by name: IB, Socket, or a plugin's
NCCL_NETDEVS_POLICY|B|2.28||AUTO|netdevs|d|How network devices are given to GPUs
NCCL_NET_FORCE_MERGE|B|2.24|||||Network devices joined by name
NCCL_NET_GDR_C2C|B|2.26||1|int|d|GPUDirect to a NIC behind a C2C-connected CPU
NCCL_NET_GDR_LEVEL|B|2.4|||level|d|Largest GPU-NIC distance for GPUDirect; LOC is never
NCCL_NET_MERGE_LEVEL|B|2.24|||level||Largest distance of NICs that are joined
NCCL_NET_MERGE_POLICY|B|2.30.5||ALL|ALL,RAIL|d|Which NICs may be joined
NCCL_NET_PLUGIN|B|2.11||||d|Network plugin: suffix, file, or none
NCCL_OOB_NET_ENABLE|B|2.23||0|0..1|d|Start-up traffic over the network plugin
NCCL_OOB_NET_IFNAME|B|2.23||||d|Interfaces of the start-up traffic
NCCL_P2P_LEVEL|B|2.3.4|||level|d|Largest GPU-GPU distance for P2P; LOC is never
NCCL_PXN_C2C|B|2.27||1|int|d|PXN to a NIC behind a C2C-connected CPU
NCCL_SHM_LOCALITY|B|2.13||2|int||Which side holds a shared memory buffer
NCCL_SOCKET_FAMILY|B||||AF_INET,AF_INET6|d|Address family of sockets
NCCL_SOCKET_IFNAME|B|||||d|Interfaces for sockets and the start-up: prefixes, ^, =
NCCL_SOCKET_POLL_TIMEOUT_MSEC|B|2.29||0|0..|d|Poll between connection attempts, ms
NCCL_SOCKET_RETRY_CNT|B|2.24||34|1..|d|Retries of a socket connection
NCCL_SOCKET_RETRY_SLEEP_MSEC|B|2.24||100|1..|d|Pause between them, ms
NCCL_TOPO_FILE|B|2.6||||d|Topology file to load
NCCL_UID_STAGGER_RATE|B|2.23||7000|1..|d|Start-up messages per second to the root
NCCL_UID_STAGGER_THRESHOLD|B|2.23||256|1..|d|Ranks above which the start-up is spread
NCCL_ALGO|C|2.5|||algo|d|Algorithms that may be chosen; per function since 2.24
NCCL_ALLGATHERV_ENABLE|C|2.29||1|int||All-gather with differing sizes
NCCL_ALLOC_P2P_NET_LL_BUFFERS|C|2.14||0|0..1|d|LL buffers for network send and receive
NCCL_BUFFSIZE|C|||4194304|1..|d|Bytes of the buffer between two ranks
NCCL_CGA_CLUSTER_SIZE|C|2.15||auto|0..8|d|Thread block cluster size from Hopper on
NCCL_COLLNET_ENABLE|C|2.6||auto|0..1|d|In-network reduction (SHARP) through CollNet
NCCL_COLLNET_NODE_THRESHOLD|C|2.9.9||2|int|d|Nodes from which CollNet is used
NCCL_CROSS_NIC|C|2.5||2|0..2|d|Whether a ring may change rails between nodes
NCCL_CTA_POLICY|C|2.27||DEFAULT||d|How thread blocks are spent
NCCL_IB_ADAPTIVE_ROUTING|C|2.16||auto|int|d|Adaptive routing: on for InfiniBand, off for RoCE
NCCL_IB_AR_THRESHOLD|C|2.6||auto|int|d|Bytes from which adaptive routing is used
NCCL_IB_PCI_RELAXED_ORDERING|C|2.12||2|0..2|d|PCIe relaxed ordering of RDMA writes
NCCL_IB_QPS_PER_CONNECTION|C|2.10||1|1..128|d|Queue pairs for each connection
NCCL_IB_SPLIT_DATA_ON_QPS|C|2.18||0|0..1|d|Splits each message over the queue pairs
NCCL_L1_SHARED_MEMORY_CARVEOUT|C|2.12||0|0..100||Shared memory share of L1, per cent
NCCL_LL128_BUFFSIZE|C|2.7||auto|int||Bytes of LL128 buffers
NCCL_LL128_NTHREADS|C|2.5||auto|int||Threads of a block with LL128
NCCL_LL_BUFFSIZE|C|2.7||auto|int||Bytes of LL buffers
NCCL_MAX_CTAS|C|2.17||auto|1..64|d|Most thread blocks; 32 before 2.25
NCCL_MAX_P2P_NCHANNELS|C|2.7||64|int||Most channels of send and receive
NCCL_MEM_SYNC_DOMAIN|C|2.16||1|0..1|d|Memory synchronisation domain of NCCL's kernels
NCCL_MIN_CTAS|C|2.17||auto|1..64|d|Fewest thread blocks; 32 at most before 2.25
NCCL_MIN_P2P_NCHANNELS|C|2.7||1|int||Fewest channels of send and receive
NCCL_NCHANNELS_PER_NET_PEER|C|2.12||auto|int||Channels to each peer over the network
NCCL_NET_GDR_READ|C|||auto|int|d|GPUDirect for sending too
NCCL_NET_OVERHEAD|C|2.18||auto|int||Network overhead in the cost model, ns
NCCL_NET_SHARED_BUFFERS|C|2.8||auto|int|d|Shares network buffers between peers
NCCL_NET_SHARED_COMMS|C|2.12||1|int|d|Shares connections under PXN
NCCL_NTHREADS|C|||auto|64..512|d|Threads of a block with Ring and Tree
NCCL_NVB_PRECONNECT|C|2.9||1|int||Connects paths through another GPU ahead
NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE|C|2.27||auto|int||Schedules for NVLink use
NCCL_NVLSTREE_MAX_CHUNKSIZE|C|2.20||auto|int||Largest chunk of NVLSTree, bytes
NCCL_NVLS_CHUNKSIZE|C|2.21||131072|int||Chunk of NVLS, bytes
NCCL_NVLS_ENABLE|C|2.17||2|0..2|d|NVLink SHARP
NCCL_NVLS_NCHANNELS|C|2.17||auto|int||Channels of NVLS
NCCL_P2P_LL_THRESHOLD|C|2.14||16384|int|d|Bytes up to which send and receive use LL
NCCL_P2P_MAX_PEERS|C|2.30||auto|int||Most peers of send and receive at a time
NCCL_P2P_NET_CHUNKSIZE|C|2.14||131072|1..|d|Chunk of send and receive over the network, bytes
NCCL_P2P_NVL_CHUNKSIZE|C|2.16||524288|1..||Chunk of send and receive over NVLink, bytes
NCCL_P2P_PCI_CHUNKSIZE|C|2.16||131072|1..||Chunk of send and receive over PCIe, bytes
NCCL_P2P_PER_CHANNEL_NET_BW|C|2.29||14|int||Bandwidth of a channel in the cost model, GB/s
NCCL_P2P_PER_CHANNEL_REG_NET_BW|C|2.31||auto|int||The same for registered buffers; auto: that of the network
NCCL_P2P_PXN_LEVEL|C|2.12||2|0..2|d|When send and receive use PXN
NCCL_P2P_READ_ENABLE|C|2.7||auto|int||Reads from a peer instead of writing
NCCL_P2P_SCHEDULE_GROUP_SIZE|C|2.28||8|int||Peers scheduled together
NCCL_P2P_USE_CUDA_MEMCPY|C|2.13||0|int||Copies between GPUs by copy engine
NCCL_PAT_ENABLE|C|2.23||2|0..2||PAT for all-gather and reduce-scatter
NCCL_PROGRESS_APPENDOP_FREQ|C|2.16||8|int||How often the proxy takes new work
NCCL_PROXY_APPEND_BATCH_SIZE|C|2.16||16|int||Operations handed to the proxy at a time
NCCL_THREAD_THRESHOLDS|C|2.5|||||Six sizes per thread at which blocks grow
NCCL_UNPACK_DOUBLE_NCHANNELS|C|2.22||1|int||Twice the channels for devices that unpack
NCCL_NSOCKS_PERTHREAD|C3|2.4.8||auto|int|d|Sockets of each helper thread; with threads at most 64
NCCL_SOCKET_INLINE|C3|2.27||128|int||Bytes sent inline
NCCL_SOCKET_MIN_TASKSIZE|C3|2.27||65536|int||Smallest piece of a socket transfer, bytes
NCCL_SOCKET_NTHREADS|C3|2.4.8||auto|int|d|Helper threads of a socket connection, up to 16
NCCL_SOCKET_RCVBUF|C3|2.27||-1|int||Receive buffer of sockets, bytes
NCCL_SOCKET_SNDBUF|C3|2.27||-1|int||Send buffer of sockets, bytes
NCCL_DEBUG|D||||VERSION,WARN,ATTN,INFO,ABORT,TRACE|d|How much is logged
NCCL_DEBUG_FILE|D|2.2.12||||d|Log file; %h host, %p process
NCCL_DEBUG_LEVELS|D|2.32||NONE||d|Levels that are logged beside those of NCCL_DEBUG
NCCL_DEBUG_SUBSYS|D|2.3.4||INIT,BOOTSTRAP,ENV||d|Which parts log
NCCL_DEBUG_TIMESTAMP_FORMAT|D|2.26||||d|Form of times in the log
NCCL_DEBUG_TIMESTAMP_LEVELS|D|2.26||||d|Which lines carry a time
NCCL_DIAGNOSTICS_ECC_THRESHOLD|D|2.31||0|int||Corrected ECC errors that diagnostics tell of; 0: of none
NCCL_DIAGNOSTICS_IB_BW_TIMEOUT|D|2.32||5|int||Time for the diagnostics' bandwidth test of NICs, s
NCCL_GIN_PLUGIN_REF_COUNT|D|2.29||0|int||Internal count of a plugin
NCCL_GRAPH_DUMP_FILE|D|2.6|||||File that the channel graph is written to
NCCL_GRAPH_DUMP_FILE_RANK|D|2.6||0|int||Rank that writes it
NCCL_IB_WARN_RAIL_LOCAL|D|2.24||0|int||Warns where rails of two nodes differ
NCCL_IB_WQE_LATENCY_REPORT|D|2.31||1|int||Logs summaries of transfers' latencies
NCCL_IB_WQE_LATENCY_THRESHOLD_NS|D|2.31||0|int||Latency from which a transfer is slow, ns; 0: not measured
NCCL_NET_PLUGIN_REF_COUNT|D|2.26||0|int||Internal count of a plugin
NCCL_NVTX_DISABLE|D|2.28||0|int||No NVTX ranges
NCCL_PARAM_DUMP_ALL|D|2.30|||||Prints every setting as it took effect
NCCL_PROFILER_PLUGIN|D|2.23||||d|Profiler plugin: suffix, file, or none
NCCL_PROGRESS_COUNTERS|D|2.32||0|int||Counts what GPUs have finished, for RAS
NCCL_PROGRESS_COUNTER_MONITOR_POLL_MS|D|2.32||1000|int||Pause between looks at these counters, ms
NCCL_PROGRESS_COUNTER_MONITOR_STALE_MS|D|2.32||5000|int||Standstill from which a counter is stale, ms
NCCL_PROGRESS_COUNTER_MONITOR_STALE_WARN_SEC|D|2.32||600|int||Standstill from which there is a warning, s
NCCL_PROXY_DUMP_SIGNAL|D|2.14||-1|int||Signal at which the proxy prints its state
NCCL_RAS_ADDR|D|2.24||localhost:28028||d|Address of the RAS service
NCCL_RAS_ENABLE|D|2.24||1|0..1|d|The RAS service, which tells who lags
NCCL_RAS_TIMEOUT_FACTOR|D|2.24||1|int|d|Factor of RAS timeouts
NCCL_REPORT_CONNECT_PROGRESS|D|2.19||0|int||Logs how connecting goes on
NCCL_RMA_PLUGIN_REF_COUNT|D|2.30||0|int||Internal count of a plugin
NCCL_RMA_PROXY_DUMP_SIGNAL|D|2.29||-1|int||Signal at which the RMA proxy prints its state
NCCL_RUN_DIAGNOSTICS|D|2.31||0|int||Tests the paths between GPUs at the start
NCCL_RUN_RAS_DIAGNOSTICS|D|2.31||0|int||Compares the ranks' GPUs, drivers and variables at the start
NCCL_SET_THREAD_NAME|D|2.12||0|0..1|d|Names NCCL's threads
NCCL_TOPO_DUMP_FILE|D|2.6||||d|File that the topology is written to
NCCL_TOPO_DUMP_FILE_RANK|D|2.6||0|int||Rank that writes it
NCCL_TUNER_PLUGIN|D|2.19||||d|Tuner plugin: suffix, file, or none
NCCL_WARN_ENABLE_DEBUG_INFO|D|2.19|||||The first warning turns INFO on
NCCL_IB_CUDA_SUPPORT|E||2.4|||d|Was GPUDirect on or off
NCCL_LL_THRESHOLD|E|2.1|2.5|||d|Was the size up to which LL is used
NCCL_MAX_NCHANNELS|E|2.5||auto|1..|d|Most channels
NCCL_MAX_NRINGS|E|||auto|1..||Most channels, by its oldest name
NCCL_MIN_NCHANNELS|E|2.5||auto|1..|d|Fewest channels
NCCL_MIN_NRINGS|E|||auto|1..||Fewest channels, by its oldest name
NCCL_SINGLE_RING_THRESHOLD|E||2.3|||d|Was the size up to which one ring is used
NCCL_TREE_THRESHOLD|E|2.4|2.5|||d|Was the size up to which trees are used
NCCL_CE_CHUNK_SIZE|F|2.32||8388608|int||Chunk of copies by copy engine, bytes
NCCL_CE_COLL_AG_MULTICAST_THRESHOLD|F|2.31||auto|int||Bytes up to which all-gathers by copy engine multicast
NCCL_CE_INTRA_GPU_MEMCPY_ENABLE|F|2.32||1|int||Copies inside a GPU overlap those by copy engine
NCCL_CFT_ENABLE|F|2.31||1|int||Compute Fabric Transport
NCCL_DEV_API_JIT|F|2.30||0|int||Device API compiled at run time
NCCL_GDAKI_FORCE_MCST|F|2.32||0|int||GPU-initiated traffic never skips its step mcst
NCCL_GDAKI_USE_RELIABLE_DB|F|2.29||0|int||Reliable doorbells of GPU-initiated traffic
NCCL_GIN_ENABLE|F|2.28||1|int||GPU-initiated networking
NCCL_GIN_ERROR_QUERY_SEC|F|2.28||10|int||Seconds between looks for its errors
NCCL_GIN_GDAKI_LAG_AWARE_DISABLE|F|2.32||0|int||GPU-initiated traffic ignores that ports are bonded
NCCL_GIN_GDAKI_MAX_DEST_RD_ATOMIC|F|2.30||auto|int||Outstanding reads accepted
NCCL_GIN_GDAKI_MAX_QP_RD_ATOMIC|F|2.30||auto|int||Outstanding reads issued
NCCL_GIN_GDAKI_NIC_HANDLER|F|2.28||0|int||Who rings the NIC's doorbell
NCCL_GIN_GDAKI_QP_DEPTH|F|2.28||128|int||Depth of its queue pairs
NCCL_GIN_IB_OOO_OPT|F|2.31||0|int||GPU-initiated traffic may arrive out of order
NCCL_GIN_NCONNECTIONS|F|2.29||auto|int||Connections of GPU-initiated networking
NCCL_GIN_PLUGIN|F|2.29||||d|Its plugin
NCCL_GIN_PROXY_POLL_BATCH|F|2.31||32|int||Requests that its proxy takes at a time
NCCL_GIN_PROXY_QUEUE_SIZE|F|2.28||-1|int||Queue of its proxy
NCCL_GIN_TYPE|F|2.28||-1|int||Which kind of it is used
NCCL_HIER_CE_COLL_AG_RAIL_RING_ENABLE|F|2.32||auto|int||All-gathers by copy engine take a ring between nodes
NCCL_HIER_CE_COLL_NUM_CTX|F|2.31||auto|int||Most contexts of collectives by copy engine
NCCL_NUM_RMA_CTX|F|2.29||auto|int||Contexts of one-sided operations
NCCL_NUM_RMA_INT_CTX|F|2.31||auto|int||Contexts of one-sided operations for NCCL's own use
NCCL_RMA_EAGER_INIT|F|2.31||auto|int|d|Sets one-sided operations up with the communicator
NCCL_RMA_IB_WR_BATCHSIZE|F|2.32||64|int||Their work requests posted at a time
NCCL_RMA_MULTI_CTX_THRESHOLD|F|2.31||auto|int||Bytes from which they use several contexts
NCCL_RMA_PLUGIN|F|2.30||||d|Plugin of one-sided operations
NCCL_RMA_PROXY_QUEUE_SIZE|F|2.29||-1|int||Queue of their proxy
NCCL_SYM_CE_THRESHOLD|F|2.29||8388608|int||Bytes from which copy engines are used
NCCL_SYM_GIN_KERNELS_ENABLE|F|2.29|||0..1|d|Symmetric kernels over the network
NCCL_SYM_KERNEL|F|2.27|||||Which symmetric kernel is used
NCCL_SYM_NOWIN_ENABLE|F|2.29||0|int||Symmetric kernels without windows
NCCL_SYM_REUSE_SYSMEM_HANDLES|F|2.30||0|int||Uses handles of host memory again
NCCL_WIN_ENABLE|F|2.27||1|0..1|d|Registration of windows
NCCL_WIN_STRIDE|F|2.27||-1|int||Stride of windows
"""

# Variables that only earlier versions read; none of them is in CURRENT.
REMOVED: Final = """\
NCCL_AGG_ALLOC_MODE|E|2.10|2.13||||Was how aggregated operations take channels
NCCL_AGG_CHANNEL_SIZE|E|2.10|2.20||||Was the bytes of a channel of aggregated operations
NCCL_CREATE_THREAD_CONTEXT|E|2.13|2.30.7|0|int||Was a CUDA context for each helper thread
NCCL_CUDA_PATH|E|2.13|2.21||||Was where libcuda is
NCCL_GDRCOPY_TAIL_ENABLE|E|2.9|2.12|1|int||Was GDRCopy for tails
NCCL_GIN_COUNTER_POOL_SIZE|E|2.28|2.30||int||Was the counters of GPU-initiated networking
NCCL_GIN_EXCLUSIVE_CONTEXTS|E|2.29.7|2.30||int||Was contexts for one communicator alone
NCCL_GIN_NCONTEXTS|E|2.28|2.30||int||Was the contexts of GPU-initiated networking
NCCL_GIN_SIGNAL_POOL_SIZE|E|2.28|2.30||int||Was the signals of GPU-initiated networking
NCCL_GRAPH|E|2.5|2.6||||Was a fixed channel graph
NCCL_IB_GDR_LEVEL|E||2.4||||Was the largest GPU-NIC distance for GPUDirect
NCCL_MLOPART_RDMA_ENABLE|E|2.30|2.32|0|int||Was RDMA on GPU partitions
NCCL_MNNVL|E|2.20|2.21||int||Was NVLink between nodes
NCCL_NET_GDR_MLOPART|E|2.30|2.32|0|int||Was GPUDirect on GPU partitions
NCCL_PROXY_PROFILE|E|2.12|2.23||||Was the file of the proxy's profile
NCCL_RINGS|E||2.5||||Was the order of the rings
NCCL_SHARED_BUFF_COUNT|E|2.8|2.9||int||Was the count of shared buffers
NCCL_SHM_MEMCPY_MODE|E|2.13|2.30.7|1|int||Was which side copies by copy engine
NCCL_SHM_USE_CUDA_MEMCPY|E|2.13|2.30.7|0|int||Was copies to shared memory by copy engine
NCCL_THREAD_THRESHOLD|E||2.5||int||Was the size per thread at which blocks grow
NCCL_TOPO_SCATTER_START_NET|E|2.31|2.32|0|int||Was which network device the search begins with
NCCL_WORK_FIFO_DEPTH|E|2.13|2.22||int||Was the depth of the work queue
"""

# Variables that NCCL and its plugins read, and that are no part of NCCL's own interface to users.
INTERNAL: Final = """\
NCCL_LSA_TEAM_SIZE|F|2.29.7||0|int||Ranks of a load-store team
NCCL_SYM_CTAS|F|2.27||0|int||Thread blocks of symmetric kernels
NCCL_SYM_RS_GIN_CHUNK_SIZE|F|2.30||-1|int||Chunk of a reduce-scatter over the network
NCCL_SYM_TMA_ENABLE|F|2.30||1|int||Tensor memory accelerator in symmetric kernels
NCCL_TUNER_CONFIG_FILE|D|2.28|||||Table of the example tuner plugin
NCCL_TUNER_CONFIG_PATH|D||||||Table of Google's tuner plugins
NCCL_PLUGIN_P2P|B|||ib|ib,ucx,ucx_rma,ucx_uct,ucx_uct_read||Transport of the RDMA-SHARP plugin
NCCL_IB_IS_GLOBAL|B|||0|int||Global routing header, RDMA-SHARP plugin
NCCL_DYNAMIC_CHUNK_SIZE|C||||||Chunk size of Google's TCPX plugin
NCCL_USE_SNAP|B||||||Google's TCPXO plugin
NCCL_GIN_PROXY_NTHREADS|F||||||Threads of the GIN proxy: AWS plugin, NCCL since 2.31
"""

PLUGIN_PREFIXES: Final[Mapping[str, str]] = {
    "NCCL_FASTRAK_": "Google GPUDirect-TCPXO plugin",
    "NCCL_GPUDIRECTTCPX_": "Google GPUDirect-TCPX plugin",
    "NCCL_SHIMNET_": "Google's configuration checker",
    "NCCL_GIB_": "Google gIB plugin",
    "NCCL_TELEMETRY_": "Google's telemetry plugin",
    "NCCL_OFI_": "AWS OFI plugin",
    "NCCL_IBEXT_": "NVIDIA RDMA-SHARP plugin",
    "NCCL_SHARP_": "NVIDIA RDMA-SHARP plugin",
    "NCCL_UCX_": "NVIDIA RDMA-SHARP plugin",
    "NCCL_INSPECTOR_": "NCCL Inspector profiler plugin",
    "NCCL_PROFILE_": "NCCL example profiler plugin",
    "NCCL_PROFILER_": "NCCL profiler plugins",
    "NCCL_TESTS_": "nccl-tests",
    "NCCL_CTRAN_": "Meta's NCCLX",
    "NCCL_COLLTRACE": "Meta's NCCLX",
}
"""Plugins and tools by the prefix of the variables that they read; any name with such a prefix is accepted. (AWS's
OFI_NCCL_* and torch's TORCH_NCCL_* do not begin with NCCL_.)"""

OTHER_READERS: Final[Mapping[str, str]] = {
    "NCCL_VERSION": "set by NVIDIA's container images, for information",
    "NCCL_ROOT": "used by builds",
    "NCCL_ROOT_DIR": "used by builds",
    "NCCL_HOME": "used by builds",
    "NCCL_PATH": "used by builds",
    "NCCL_DIR": "used by builds",
    "NCCL_LIBRARY": "used by builds",
    "NCCL_LIB": "used by builds",
    "NCCL_LIB_DIR": "used by builds and by Google's set-up scripts",
    "NCCL_LIBRARIES": "used by builds",
    "NCCL_INCLUDE": "used by builds",
    "NCCL_INCLUDE_DIR": "used by builds",
    "NCCL_INCLUDE_DIRS": "used by builds",
    "NCCL_ASYNC_ERROR_HANDLING": "torch's former name of TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "torch's former name of TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "torch's former name of TORCH_NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING": "torch's former name of TORCH_NCCL_ENABLE_TIMING",
    "NCCL_AVOID_RECORD_STREAMS": "torch's former name of TORCH_NCCL_AVOID_RECORD_STREAMS",
}
"""Variables that NCCL does not read and other software does, and what that is."""

REPLACEMENTS: Final[Mapping[str, str]] = {
    "NCCL_CHECKS_DISABLE": "NCCL_CHECK_POINTERS",
    "NCCL_CHECK_POINTERS": "NCCL_CHECK_MODE",
    "NCCL_GRAPH": "NCCL_GRAPH_FILE",
    "NCCL_IB_CUDA_SUPPORT": "NCCL_NET_GDR_LEVEL",
    "NCCL_IB_GDR_LEVEL": "NCCL_NET_GDR_LEVEL",
    "NCCL_LL_THRESHOLD": "NCCL_PROTO",
    "NCCL_MAX_NCHANNELS": "NCCL_MAX_CTAS",
    "NCCL_MAX_NRINGS": "NCCL_MAX_CTAS",
    "NCCL_MIN_NCHANNELS": "NCCL_MIN_CTAS",
    "NCCL_MIN_NRINGS": "NCCL_MIN_CTAS",
    "NCCL_MNNVL": "NCCL_MNNVL_ENABLE",
    "NCCL_RINGS": "NCCL_GRAPH_FILE",
    "NCCL_THREAD_THRESHOLD": "NCCL_THREAD_THRESHOLDS",
    "NCCL_TREE_THRESHOLD": "NCCL_ALGO",
    "NCCL_WORK_FIFO_DEPTH": "NCCL_WORK_FIFO_BYTES",
}
"""The variable that replaces a deprecated or removed one."""

COMMON_MISTAKES: Final[Mapping[str, str]] = {
    "NCCL_CHECK_DISABLE": "NCCL_CHECKS_DISABLE",
    "NCCL_MIN_CHANNELS": "NCCL_MIN_CTAS",
    "NCCL_MAX_CHANNELS": "NCCL_MAX_CTAS",
    "NCCL_TIMEOUT": "NCCL_IB_TIMEOUT",
    "NCCL_IB_NET_LATENCY": "NCCL_NET_OVERHEAD",
    "NCCL_NET_DISABLE": "NCCL_NET",
}
"""Names in published configurations that no version of NCCL reads, and the variable that was probably meant."""

SECRET: Final = frozenset({"NCCL_SOCKET_MAGIC", "NCCL_COMM_ID"})
"""Variables whose values only the ranks may know: no part of laggard keeps them."""
