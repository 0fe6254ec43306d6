/* What the node of node.cpp knows about a shape, and which tensors it may read: the same whitelist
   as bgn/kernels/eligible.py. Whatever is unusual goes to Python. */

#ifndef BGN_NODE_CORE_H
#define BGN_NODE_CORE_H

#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <ATen/EmptyTensor.h>
#include <ATen/FuncTorchTLS.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <array>
#include <atomic>
#include <memory>

/* as the header of the tracer declares it, which takes seconds to compile */
namespace torch::jit::tracer {
struct TracingState;
TORCH_API const std::shared_ptr<TracingState>& getTracingState();
} // namespace torch::jit::tracer

namespace bgn {

using at::Tensor;

/* bgn_renorm of plan.h */
struct Renorm {
    const void *mean, *var;
    int64_t entries;
    double r_max, d_max;
    void *r, *d;
};

/* bgn_act of plan.h, and its functions */
enum Function { NONE = -1, LEAKY };
struct Act {
    int function, inverted;
    double slope;
    const void *residual, *b, *y;
    void *inner, *again;
};

/* The entry points of bgn.c, and what else Python hands over once. */
struct Setup {
    int (*forward)(const void* plan, const void* x, void* y, const void* w, const void* b, int low,
                   double eps, void* stats, void* running_mean, void* running_var, int64_t entries,
                   double momentum, int64_t* counter, const Renorm* renorm, const Act* act,
                   int threads);
    int (*apply)(const void* plan, const void* x, void* y, const void* w, const void* b, int low,
                 double eps, const void* mean, const void* var, void* rstd, const Act* act,
                 int threads);
    int (*backward)(const void* plan, const void* gy, const void* x, void* gx, const void* w,
                    int low, const void* mean, const void* rstd, void* gw, void* gb, int frozen,
                    const Renorm* renorm, const Act* act, int threads);
    std::array<uint64_t, 2> plain_keys; /* dispatch keys of a dense CPU tensor; in inference mode */
    PyObject* gradients;                /* bgn.kernels.cpu.gradients */
    PyObject* activated; /* the same with an activation: bgn.kernels.activated.node_gradients */
};
inline Setup setup;

class WithGil {
    PyGILState_STATE state = PyGILState_Ensure();

  public:
    ~WithGil() { PyGILState_Release(state); }
};

class WithoutGil {
    PyThreadState* state = PyEval_SaveThread();

  public:
    ~WithoutGil() { PyEval_RestoreThread(state); }
};

/* A shape: what bgn.kernels.library.CorePlan knows, for C++. Shared by the plan and by all nodes
   that wait for their backward pass. */
struct Core {
    PyObject* owner; /* the CorePlan, which frees `plan` */
    const void* plan;
    std::vector<int64_t> sizes;
    at::ScalarType dtype, wide; /* of x, of the statistics */
    at::MemoryFormat layout;
    int64_t C, B, G, numel;
    int64_t step; /* bytes of each sort of statistics */
    bool whole_channels, positional, serial;
    uint64_t id; /* never used again, unlike addresses */

    Core() {
        static std::atomic<uint64_t> count{0};
        id = count++;
    }
    Core(const Core&) = delete;
    Core& operator=(const Core&) = delete;
    ~Core() {
        if (!Py_IsInitialized()) return; /* too late to free anything of Python's */
        WithGil gil;
        Py_XDECREF(owner);
    }

    int threads() const { return serial ? 1 : at::get_num_threads(); }
};

/* See no_transform in bgn/kernels/eligible.py. */
inline bool no_transform() {
    if (c10::impl::TorchDispatchModeTLS::stack_len() != 0) return false;
    if (torch::jit::tracer::getTracingState()) return false;
    if (torch::autograd::ForwardADLevel::try_get_by_idx(0)) return false;
    if (auto& functorch = at::functorch::functorchTLSAccessor()) {
        try { /* the one public question about the stack of torch.func's interpreters */
            functorch->checkSupportsCppAutogradFunction();
        } catch (const c10::Error&) {
            return false;
        }
    }
    return true;
}

/* How many elements of its storage a tensor reaches over, from its first one on. */
inline int64_t extent(const Tensor& t) {
    if (t.is_contiguous()) return t.numel();
    int64_t elements = 1;
    for (int64_t i = 0; i < t.dim(); i++) elements += (t.size(i) - 1) * t.stride(i);
    return elements;
}

/* See is_plain in bgn/kernels/eligible.py. Subclasses need not have dispatch keys of their own. */
inline bool is_plain(const Tensor& t, int64_t elements) {
    const at::TensorImpl* impl = t.unsafeGetTensorImpl();
    const uint64_t keys = impl->key_set().raw_repr();
    if (keys != setup.plain_keys[0] && keys != setup.plain_keys[1]) return false;
    const PyObject* object = impl->pyobj_slot()->load_pyobj();
    if (object && !THPVariable_CheckTypeExact(Py_TYPE(object))) return false;
    const auto needed = static_cast<size_t>(t.storage_offset() + elements) * t.itemsize();
    return t.storage().nbytes() >= needed;
}

/* x, or a gradient of its shape; strides that the kernels do not know are copied later */
inline bool is_feature_map(const Tensor& t, const Core& core) {
    return t.scalar_type() == core.dtype && t.sizes() == at::IntArrayRef(core.sizes) &&
           is_plain(t, extent(t));
}

inline bool is_vector(const Tensor& t, int64_t size) {
    return t.dim() == 1 && t.numel() == size && t.is_contiguous() && is_plain(t, size);
}

/* a vector of x's dtype or of the statistics' */
inline bool is_readable(const Tensor& t, int64_t size, const Core& core) {
    const at::ScalarType dtype = t.scalar_type();
    return (dtype == core.dtype || dtype == core.wide) && is_vector(t, size);
}

/* statistics with an entry per group, or per channel of groups of whole channels */
inline bool has_entries(const Tensor& t, const Core& core) {
    return t.numel() == core.G || (t.numel() == core.C && core.whole_channels);
}

/* corrections of renormalization, (2, B, entries) */
inline bool are_corrections(const Tensor& t, const Core& core) {
    return t.scalar_type() == core.wide && t.dim() == 3 && t.size(0) == 2 && t.size(1) == core.B &&
           (t.size(2) == core.G || t.size(2) == core.C) && t.is_contiguous() &&
           is_plain(t, t.numel());
}

/* whether the C code may write running statistics: see _are_writable in bgn/kernels/cpu.py */
inline bool is_writable(const Tensor& t, const Core& core) {
    return has_entries(t, core) && t.scalar_type() == core.wide && !t.requires_grad() &&
           !t.is_inference() && is_vector(t, t.numel());
}

inline Tensor in_layout(const Tensor& t, const Core& core) {
    return t.is_contiguous(core.layout) ? t : t.contiguous(core.layout);
}

/* torch.empty_like of a dense CPU tensor, without the dispatcher */
inline Tensor new_like(const Tensor& t) {
    return at::detail::empty_strided_cpu(t.sizes(), t.strides(), t.scalar_type());
}

inline const void* address(const Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }

/* the tensor as an object of Python's; None where there is none */
inline PyObject* wrap(const Tensor& t) {
    return t.defined() ? THPVariable_Wrap(t) : Py_NewRef(Py_None);
}

/* Throw the Python error that is set, in a way that another thread can raise it. */
[[noreturn]] inline void throw_python_error() {
    python_error error;
    error.persist();
    throw error;
}

inline void check(int code) {
    if (!code) return;
    WithGil gil;
    if (code == 1) PyErr_SetString(PyExc_MemoryError, "no memory for the sums of a normalizer");
    else
        PyErr_SetString(PyExc_RuntimeError,
                        "the C core refused its arguments: a counter of batches below 0?");
    throw_python_error();
}

} // namespace bgn

#endif
