/* A call of the C core and its node of autograd, in C++: what bgn/kernels/cpu.py does in Python,
   with the same results to the bit and less time per call.

   It knows plain calls only. run returns None for any other, before it has changed anything, and a
   backward pass that is not plain is handed to Python: double backward, batched gradients, hooks
   that return something else. It raises no errors about arguments. */

#include "node_core.h"

#include <torch/csrc/dynamo/compiled_autograd.h>

#include <cmath>
#include <optional>

namespace bgn {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using Needs = std::array<bool, 4>; /* the gradients of x, weight, bias, residual */

constexpr const char* NAME = "_Normalize"; /* as the class in Python */

/* What a backward pass needs to know, beside tensors. */
struct Call {
    std::shared_ptr<const Core> core;
    double eps;
    bool low; /* whether the parameters have a lower precision than the statistics */
    bool has_weight, has_bias;
    bool frozen; /* whether the statistics were given: mean and variance are saved too */
    bool renorm; /* whether corrections are saved too */
    int function;      /* what follows, or NONE */
    double slope;      /* of LEAKY */
    bool has_residual; /* whether something is added before it */

    /* whether the output is saved, for the sign of the function's argument */
    bool by_sign() const { return function == LEAKY && (has_residual || frozen); }
    /* whether the gradient of the function's argument is written before the sweeps */
    bool has_inner() const { return function > LEAKY || by_sign(); }

    /* edges exist for the tensors that were given */
    int weight_edge() const { return has_weight ? 1 : -1; }
    int bias_edge() const { return has_bias ? 1 + has_weight : -1; }
    int residual_edge() const { return has_residual ? 1 + has_weight + has_bias : -1; }

    at::ScalarType affine() const { return low ? core->dtype : core->wide; }

    variable_list by_edge(Tensor gx, Tensor gw, Tensor gb, Tensor gr = {}) const {
        variable_list found{std::move(gx)};
        if (has_weight) found.push_back(std::move(gw));
        if (has_bias) found.push_back(std::move(gb));
        if (has_residual) found.push_back(std::move(gr));
        return found;
    }
};

/* The pointers of corrections, for C. */
static Renorm corrections(const Tensor& correct) {
    char* r = static_cast<char*>(correct.mutable_data_ptr());
    Renorm renorm{};
    renorm.entries = correct.size(2);
    renorm.r = r, renorm.d = r + correct.nbytes() / 2;
    return renorm;
}

/* What is saved, in this order; tensors that a call does not have are not defined. */
enum { X, WEIGHT, MEAN, VAR, BIAS, OUTPUT, SAVED, CORRECT = MEAN };
using Saved = std::array<Tensor, SAVED>;

/* The backward pass in Python. stats: memory of C, or NULL for a pass by the definition. */
static variable_list gradients_in_python(const Call& call, const Tensor& gy, const Saved& saved,
                                         const void* stats, Needs needs) {
    WithGil gil;
    THPObjectPtr given(PyList_New(0));
    for (int i : {MEAN, VAR})
        if (given && saved[i].defined()) {
            THPObjectPtr item(wrap(saved[i]));
            if (!item || PyList_Append(given, item)) throw_python_error();
        }
    const auto address = static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(stats));
    auto flag = [](bool value) { return PyBool_FromLong(value); };
    THPObjectPtr found(
        call.function == NONE
            ? PyObject_CallFunction(setup.gradients, "NNNOOKdNN(NNN)", wrap(gy), wrap(saved[X]),
                                    wrap(saved[WEIGHT]), given.get(), call.core->owner, address,
                                    call.eps, flag(call.low), flag(call.frozen), flag(needs[0]),
                                    flag(needs[1]), flag(needs[2]))
            : PyObject_CallFunction(setup.activated, "NNNNNOOKdNNidN(NNNN)", wrap(gy),
                                    wrap(saved[X]), wrap(saved[WEIGHT]), wrap(saved[BIAS]),
                                    wrap(saved[OUTPUT]), given.get(), call.core->owner, address,
                                    call.eps, flag(call.low), flag(call.frozen), call.function,
                                    call.slope, flag(call.has_residual), flag(needs[0]),
                                    flag(needs[1]), flag(needs[2]), flag(needs[3])));
    if (!found) throw_python_error();
    std::array<Tensor, 4> gradients;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(found.get()) && i < 4; i++) {
        PyObject* item = PyTuple_GET_ITEM(found.get(), i);
        if (item != Py_None) gradients[static_cast<size_t>(i)] = THPVariable_Unpack(item);
    }
    return call.by_edge(gradients[0], gradients[1], gradients[2], gradients[3]);
}

struct Normalize : torch::autograd::Node {
    const Call call;
    std::shared_ptr<char[]> stats; /* mean, variance, 1 / standard deviation */
    std::array<SavedVariable, SAVED> saved;

    Normalize(edge_list&& edges, Call call_, std::shared_ptr<char[]> stats_)
        : Node(std::move(edges)), call(std::move(call_)), stats(std::move(stats_)) {}

    std::string name() const override { return std::string(NAME) + "Backward"; }

    void release_variables() override {
        std::lock_guard<std::mutex> lock(mutex_);
        for (SavedVariable& variable : saved) variable.reset_data();
        stats.reset();
    }

    /* which of them exist */
    std::array<bool, SAVED> has() const {
        const bool follows = call.function != NONE;
        return {true, call.has_weight, call.frozen || call.renorm, call.frozen,
                follows && call.has_bias, call.by_sign()};
    }

    Saved unpack() {
        Saved found;
        for (size_t i = 0; i < SAVED; i++)
            if (has()[i]) found[i] = saved[i].unpack(getptr());
        return found;
    }

    Needs needs() const {
        auto need = [this](int edge) { return edge >= 0 && task_should_compute_output(edge); };
        return {need(0), need(call.weight_edge()), need(call.bias_edge()),
                need(call.residual_edge())};
    }

    variable_list apply(variable_list&& grads) override {
        const Tensor& gy = grads[0];
        if (!gy.defined()) return call.by_edge({}, {}, {});
        Saved tensors;
        std::shared_ptr<char[]> own; /* another backward pass may release them meanwhile */
        {
            std::lock_guard<std::mutex> lock(mutex_);
            tensors = unpack();
            own = stats;
        }
        const Core& core = *call.core;
        /* what autograd hands back may be anything again: hooks change what was saved, and
           gradients may be batched, dual, negated or subclasses */
        bool eligible = !at::GradMode::is_enabled() && no_transform() && is_feature_map(gy, core) &&
                        is_feature_map(tensors[X], core) &&
                        (!call.renorm || are_corrections(tensors[CORRECT], core)) &&
                        (!call.by_sign() || is_feature_map(tensors[OUTPUT], core));
        for (int i : {WEIGHT, BIAS})
            if (tensors[i].defined())
                eligible = eligible && tensors[i].scalar_type() == call.affine() &&
                           is_vector(tensors[i], core.C);
        if (!eligible) return gradients_in_python(call, gy, tensors, own.get(), needs());
        for (int i : {X, OUTPUT})
            if (tensors[i].defined()) tensors[i] = in_layout(tensors[i], core);
        return in_c(in_layout(gy, core), tensors, own.get());
    }

    variable_list in_c(const Tensor& gy, const Saved& tensors, const char* own) const {
        const Core& core = *call.core;
        const Tensor &x = tensors[X], &weight = tensors[WEIGHT];
        const Needs need = needs();
        auto vector = [&] { return at::detail::empty_cpu({core.C}, call.affine()); };
        Tensor gx, gw, gb;
        if (need[0]) gx = new_like(x);
        if (need[1]) gw = vector();
        if (need[2]) gb = vector();
        auto output = [](const Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; };
        Renorm renorm{};
        if (call.renorm) renorm = corrections(tensors[CORRECT]);
        Act act{};
        Tensor inner;
        if (call.function != NONE) {
            act.function = call.function, act.slope = call.slope;
            act.b = address(tensors[BIAS]), act.y = address(tensors[OUTPUT]);
            if (call.has_inner()) inner = new_like(x);
            act.inner = output(inner);
        }
        check(setup.backward(core.plan, address(gy), address(x), output(gx), address(weight),
                             call.low, own, own + 2 * core.step, output(gw),
                             output(gb), call.frozen, call.renorm ? &renorm : nullptr,
                             call.function == NONE ? nullptr : &act, core.threads()));
        return call.by_edge(std::move(gx), std::move(gw), std::move(gb),
                            need[3] ? std::move(inner) : Tensor());
    }

    /* Compiled autograd calls back into this node, with other tensors and by the definition: the
       statistics in memory of C belong to this call alone. The key of its cache has all else. */

    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
        args.collect(std::string("bgn") + NAME);
        args.collect(call.core->id);
        args.collect(call.eps);
        for (bool flag : {call.low, call.has_weight, call.has_bias, call.frozen, call.renorm,
                          call.has_residual})
            args.collect(flag);
        args.collect(static_cast<int64_t>(call.function)), args.collect(call.slope);
        for (size_t i = 0; i < SAVED; i++) args.collect(saved[i], i == OUTPUT);
    }

    variable_list apply_with_saved(const variable_list& inputs,
                                   torch::dynamo::autograd::SwapSavedVariables& swap) override {
        namespace compiled = torch::dynamo::autograd;
        for (SavedVariable& variable : saved) swap.before(variable);
        std::vector<c10::IValue> args;
        for (const Tensor& tensor : unpack())
            if (tensor.defined()) args.emplace_back(tensor);
        const auto* interface = compiled::getPyCompilerInterface().get();
        auto function = [call = this->call, need = needs(), has = has()](
                            const variable_list& grads, const std::vector<c10::IValue>& args) {
            if (!grads[0].defined()) return call.by_edge({}, {}, {});
            Saved tensors;
            auto arg = args.begin();
            for (size_t i = 0; i < SAVED; i++)
                if (has[i]) tensors[i] = (arg++)->toTensor();
            return gradients_in_python(call, grads[0], tensors, nullptr, need);
        };
        const auto bound = interface->bind_function(
            swap.get_py_compiler(), std::string("bgn") + NAME, function,
            std::vector<at::TypePtr>(args.size(), at::TensorType::get()),
            /*is_custom_function=*/true, /*is_traceable=*/false);
        using Metadata = std::vector<std::optional<torch::autograd::InputMetadata>>;
        auto results = interface->call_function(
            swap.get_py_compiler(), "apply_functional", bound, inputs, args,
            compiled::IValuePacker<Metadata>::pack(compiled::get_input_metadata(next_edges())));
        for (SavedVariable& variable : saved) swap.after(variable);
        return results;
    }
};

/* The arguments of run, as far as they are plain. */
struct Arguments {
    Tensor x, weight, bias;
    Tensor running_mean, running_var, counter; /* to be moved, where there are any */
    Tensor mean, var;                          /* given */
    Tensor reference_mean, reference_var;      /* what to correct towards */
    Tensor residual;                           /* what is added before the function that follows */
    int function = NONE;
    double slope = 0;
    double eps = 0, momentum = 0, r_max = 0, d_max = 0;
};

/* A tensor or None, of a type without a meaning of its own. */
static bool read(PyObject* object, Tensor& tensor) {
    if (object == Py_None) return true;
    if (!THPVariable_CheckExact(object)) return false;
    tensor = THPVariable_Unpack(object);
    return true;
}

static bool read(PyObject* object, double& number) {
    if (PyFloat_CheckExact(object))
        number = PyFloat_AS_DOUBLE(object);
    else if (PyLong_CheckExact(object)) {
        number = PyLong_AsDouble(object);
        if (PyErr_Occurred()) return PyErr_Clear(), false;
    } else
        return false;
    return true;
}

/* bgn.running.Running: its tensors, and the weight of the next batch */
static bool read_running(PyObject* running, const Core& core, Arguments& a) {
    static PyObject* const names[] = {
        PyUnicode_InternFromString("mean"), PyUnicode_InternFromString("var"),
        PyUnicode_InternFromString("counter"), PyUnicode_InternFromString("momentum")};
    THPObjectPtr found[4];
    for (int i = 0; i < 4; i++) {
        found[i] = PyObject_GetAttr(running, names[i]);
        if (!found[i]) return PyErr_Clear(), false;
    }
    if (!read(found[0], a.running_mean) || !read(found[1], a.running_var) ||
        !read(found[2], a.counter))
        return false;
    if (!a.running_mean.defined() || !a.running_var.defined()) return false;
    const int64_t entries = a.running_mean.numel();
    if (!is_writable(a.running_mean, core) || !is_writable(a.running_var, core) ||
        a.running_var.numel() != entries)
        return false;
    if (a.counter.defined() &&
        (a.counter.scalar_type() != at::kLong || a.counter.numel() != 1 ||
         a.counter.requires_grad() || a.counter.is_inference() || !is_plain(a.counter, 1)))
        return false;
    if (found[3].get() != Py_None) return read(found[3], a.momentum);
    if (a.counter.defined())
        a.momentum = 1.0 / static_cast<double>(*a.counter.const_data_ptr<int64_t>() + 1);
    return true;
}

/* bgn.renorm.Reference: mean, var, r_max, d_max, and the share of the warmup, by which bounds that
   are finite grow */
static bool read_reference(PyObject* reference, const Core& core, Arguments& a) {
    if (!PyTuple_Check(reference) || PyTuple_GET_SIZE(reference) != 5 || core.positional)
        return false;
    double share = 0;
    if (!read(PyTuple_GET_ITEM(reference, 0), a.reference_mean) ||
        !read(PyTuple_GET_ITEM(reference, 1), a.reference_var) ||
        !read(PyTuple_GET_ITEM(reference, 2), a.r_max) ||
        !read(PyTuple_GET_ITEM(reference, 3), a.d_max) ||
        !read(PyTuple_GET_ITEM(reference, 4), share))
        return false;
    for (const Tensor* t : {&a.reference_mean, &a.reference_var})
        if (!t->defined() || t->scalar_type() != core.wide || !has_entries(*t, core) ||
            !is_vector(*t, t->numel()))
            return false;
    if (a.reference_mean.numel() != a.reference_var.numel()) return false;
    if (std::isfinite(a.r_max)) a.r_max = 1 + (a.r_max - 1) * share;
    if (std::isfinite(a.d_max)) a.d_max = a.d_max * share;
    return true;
}

/* what follows: (function, slope, residual) */
static bool read_act(PyObject* act, const Core& core, Arguments& a) {
    if (!PyTuple_CheckExact(act) || PyTuple_GET_SIZE(act) != 3 || core.positional) return false;
    a.function = static_cast<int>(PyLong_AsLong(PyTuple_GET_ITEM(act, 0)));
    if (PyErr_Occurred()) return PyErr_Clear(), false;
    if (!read(PyTuple_GET_ITEM(act, 1), a.slope) || !read(PyTuple_GET_ITEM(act, 2), a.residual))
        return false;
    return !a.residual.defined() || (a.function == LEAKY && is_feature_map(a.residual, core));
}

static bool read_arguments(PyObject* const* args, const Core& core, Arguments& a) {
    /* x, weight, bias, eps, running, given, reference, act */
    if (!read(args[0], a.x) || !read(args[1], a.weight) || !read(args[2], a.bias) ||
        !read(args[3], a.eps))
        return false;
    if (!a.x.defined() || !no_transform() || !is_feature_map(a.x, core)) return false;
    if (a.weight.defined() && !is_readable(a.weight, core.C, core)) return false;
    if (a.bias.defined() && !is_readable(a.bias, core.C, core)) return false;
    if (a.weight.defined() && a.bias.defined() && a.weight.scalar_type() != a.bias.scalar_type())
        return false;
    if (args[4] != Py_None) {
        if (args[5] != Py_None || core.positional || !read_running(args[4], core, a)) return false;
        if (!(a.momentum >= 0 && a.momentum <= 1)) return false;
    }
    if (args[5] != Py_None) {
        if (!PyTuple_CheckExact(args[5]) || PyTuple_GET_SIZE(args[5]) != 2) return false;
        if (core.positional || core.B != 1) return false;
        for (int i : {0, 1}) {
            Tensor& given = i ? a.var : a.mean;
            if (!read(PyTuple_GET_ITEM(args[5], i), given) || !given.defined() ||
                !is_readable(given, core.G, core) || given.requires_grad())
                return false;
        }
    }
    if (args[7] != Py_None && !read_act(args[7], core, a)) return false;
    return args[6] == Py_None || (args[5] == Py_None && read_reference(args[6], core, a));
}

/* Normalize; stats receives mean, variance (not where it is given) and 1 / standard deviation,
   correct the corrections towards a reference, if there is one. */
static Tensor compute(const Core& core, const Arguments& a, const Tensor& x, bool low, char* stats,
                      Tensor& correct) {
    Tensor y = new_like(x);
    Act act{};
    act.function = a.function, act.slope = a.slope;
    const Tensor residual = a.residual.defined() ? in_layout(a.residual, core) : Tensor();
    act.residual = address(residual);
    const Act* then = a.function == NONE ? nullptr : &act;
    if (a.mean.defined()) {
        const Tensor mean = a.mean.to(core.wide), var = a.var.to(core.wide);
        std::memcpy(stats, mean.const_data_ptr(), static_cast<size_t>(core.step));
        check(setup.apply(core.plan, address(x), y.mutable_data_ptr(), address(a.weight),
                          address(a.bias), low, a.eps, address(mean), address(var),
                          stats + 2 * core.step, then, core.threads()));
        return y;
    }
    void *mean = nullptr, *var = nullptr;
    int64_t entries = 0, *counter = nullptr;
    if (a.running_mean.defined()) {
        mean = a.running_mean.mutable_data_ptr(), var = a.running_var.mutable_data_ptr();
        entries = a.running_mean.numel();
        if (a.counter.defined()) counter = a.counter.mutable_data_ptr<int64_t>();
    }
    Renorm renorm{};
    if (a.reference_mean.defined()) {
        correct = at::detail::empty_cpu({2, core.B, a.reference_mean.numel()}, core.wide);
        renorm = corrections(correct);
        renorm.mean = address(a.reference_mean), renorm.var = address(a.reference_var);
        renorm.r_max = a.r_max, renorm.d_max = a.d_max;
    }
    check(setup.forward(core.plan, address(x), y.mutable_data_ptr(), address(a.weight),
                        address(a.bias), low, a.eps, stats, mean, var, entries, a.momentum,
                        counter, correct.defined() ? &renorm : nullptr, then, core.threads()));
    for (const Tensor* moved : {&a.running_mean, &a.running_var, &a.counter})
        if (moved->defined()) moved->unsafeGetTensorImpl()->bump_version();
    return y;
}

static Tensor run(const std::shared_ptr<const Core>& core, const Arguments& a, bool record) {
    const Tensor& parameter = a.weight.defined() ? a.weight : a.bias;
    const bool low = parameter.defined() && parameter.scalar_type() != core->wide;
    RECORD_FUNCTION(NAME, c10::ArrayRef<const c10::IValue>{},
                    record ? static_cast<int64_t>(at::sequence_number::peek()) : -1);
    std::shared_ptr<char[]> stats(new char[static_cast<size_t>(3 * core->step)]);
    Tensor x, y, correct;
    {
        WithoutGil no_gil;
        x = in_layout(a.x, *core); /* a copy is recorded, too */
        at::NoGradGuard no_grad;
        y = compute(*core, a, x, low, stats.get(), correct);
    }
    if (!record) return y;
    edge_list edges;
    const Tensor* inputs[] = {&x, &a.weight, &a.bias, &a.residual};
    for (const Tensor* t : inputs)
        if (t->defined()) edges.push_back(torch::autograd::impl::gradient_edge(*t));
    const Call call{core, a.eps, low, a.weight.defined(), a.bias.defined(), a.mean.defined(),
                    correct.defined(), a.function, a.slope, a.residual.defined()};
    auto node = c10::make_intrusive<Normalize>(std::move(edges), call, std::move(stats));
    torch::autograd::impl::set_gradient_edge(y, Edge(node, node->add_input_metadata(y)));
    const Tensor* saved[] = {&x,     &a.weight, correct.defined() ? &correct : &a.mean,
                             &a.var, &a.bias,   &y};
    for (size_t i = 0; i < SAVED; i++)
        if (node->has()[i]) node->saved[i] = SavedVariable(*saved[i], i == OUTPUT);
    return y;
}

struct PyCore {
    PyObject_HEAD
    std::shared_ptr<const Core> core;
};

static void free_core(PyObject* self) {
    reinterpret_cast<PyCore*>(self)->core.~shared_ptr();
    Py_TYPE(self)->tp_free(self);
}

/* Core(owner, plan, shape, dtype, wide, layout, C, B, G, step, whole_channels, positional,
   serial); the types are numbered as in plan.h, the layouts by the number of spatial dimensions
   of channels_last, or 0. */
static PyObject* new_core(PyTypeObject* type, PyObject* args, PyObject*) {
    auto core = std::make_shared<Core>();
    core->owner = nullptr;
    PyObject *owner, *shape;
    unsigned long long plan;
    int dtype, wide, layout, whole_channels, positional, serial;
    long long C, B, G, step;
    if (!PyArg_ParseTuple(args, "OKO!iiiLLLLppp", &owner, &plan, &PyTuple_Type, &shape, &dtype,
                          &wide, &layout, &C, &B, &G, &step, &whole_channels, &positional, &serial))
        return nullptr;
    constexpr at::ScalarType types[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};
    core->numel = 1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(shape); i++) {
        core->sizes.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(shape, i)));
        core->numel *= core->sizes.back();
    }
    if (PyErr_Occurred()) return nullptr;
    core->plan = reinterpret_cast<const void*>(static_cast<uintptr_t>(plan));
    core->dtype = types[dtype], core->wide = types[wide];
    core->layout = layout == 2   ? at::MemoryFormat::ChannelsLast
                   : layout == 3 ? at::MemoryFormat::ChannelsLast3d
                                 : at::MemoryFormat::Contiguous;
    core->C = C, core->B = B, core->G = G, core->step = step;
    core->whole_channels = whole_channels, core->positional = positional, core->serial = serial;
    auto* self = reinterpret_cast<PyCore*>(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    core->owner = Py_NewRef(owner);
    new (&self->core) std::shared_ptr<const Core>(std::move(core));
    return reinterpret_cast<PyObject*>(self);
}

static PyTypeObject core_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

/* run(core, x, weight, bias, eps, running, given, reference, act) -> Tensor; None for a call that
   is not plain */
static PyObject* py_run(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count != 9 || Py_TYPE(args[0]) != &core_type) {
        PyErr_SetString(PyExc_TypeError,
                        "run(core, x, weight, bias, eps, running, given, reference, act)");
        return nullptr;
    }
    try {
        const auto& core = reinterpret_cast<PyCore*>(args[0])->core;
        Arguments a;
        if (!read_arguments(args + 1, *core, a)) Py_RETURN_NONE;
        const bool record = at::GradMode::is_enabled() &&
                            (a.x.requires_grad() || a.weight.requires_grad() ||
                             a.bias.requires_grad() || a.residual.requires_grad());
        if (record) /* inference tensors cannot be saved: Python says so */
            for (const Tensor* t : {&a.x, &a.weight, &a.bias, &a.mean, &a.var})
                if (t->defined() && t->is_inference()) Py_RETURN_NONE;
        return THPVariable_Wrap(run(core, a, record));
    } catch (...) {
        torch::translate_exception_to_python(std::current_exception());
        return nullptr;
    }
}

/* setup(forward, apply, backward, plain_keys, gradients, activated): addresses in bgn.c; two sets
   of dispatch keys; bgn.kernels.cpu.gradients, and that with an activation */
static PyObject* py_setup(PyObject*, PyObject* args) {
    unsigned long long forward, apply, backward, dense, inference;
    PyObject *gradients, *activated;
    if (!PyArg_ParseTuple(args, "KKK(KK)OO", &forward, &apply, &backward, &dense, &inference,
                          &gradients, &activated))
        return nullptr;
    setup.forward = reinterpret_cast<decltype(setup.forward)>(static_cast<uintptr_t>(forward));
    setup.apply = reinterpret_cast<decltype(setup.apply)>(static_cast<uintptr_t>(apply));
    setup.backward = reinterpret_cast<decltype(setup.backward)>(static_cast<uintptr_t>(backward));
    setup.plain_keys = {dense, inference};
    setup.gradients = Py_NewRef(gradients), setup.activated = Py_NewRef(activated);
    Py_RETURN_NONE;
}

static PyObject* saved_tensors(PyObject* self, void*) {
    try {
        auto* node = reinterpret_cast<torch::autograd::THPCppFunction*>(self)->cdata.get();
        const Normalize* normalize = static_cast<Normalize*>(node);
        const auto has = normalize->has();
        Py_ssize_t count = SAVED; /* None for those between that a call does not have */
        while (count > WEIGHT + 1 && !has[static_cast<size_t>(count - 1)]) count--;
        THPObjectPtr found(PyTuple_New(count));
        for (Py_ssize_t i = 0; found && i < count; i++) {
            const auto& saved = normalize->saved[static_cast<size_t>(i)];
            /* the output has no other owner to tell its node */
            PyObject* item = wrap(has[static_cast<size_t>(i)] ? saved.unpack(node->getptr())
                                                              : Tensor());
            if (!item) return nullptr;
            PyTuple_SET_ITEM(found.get(), i, item);
        }
        return found.release();
    } catch (...) {
        torch::translate_exception_to_python(std::current_exception());
        return nullptr;
    }
}

using namespace torch::autograd; /* for the macro */
static PyGetSetDef node_properties[] = {
    THP_FUNCTION_DEFAULT_PROPERTIES,
    {"saved_tensors", saved_tensors, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};
static PyTypeObject node_type;

static PyMethodDef functions[] = {
    {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(py_run)), METH_FASTCALL,
     "Normalize a plain tensor, or return None."},
    {"setup", py_setup, METH_VARARGS, "Tell where the C core and the rest of Python are."},
    {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_node", nullptr, -1, functions,
                             nullptr, nullptr, nullptr, nullptr};

} // namespace bgn

PyMODINIT_FUNC PyInit__node() {
    using namespace bgn;
    core_type.tp_name = "bgn._node.Core";
    core_type.tp_basicsize = sizeof(PyCore);
    core_type.tp_flags = Py_TPFLAGS_DEFAULT;
    core_type.tp_new = new_core;
    core_type.tp_dealloc = free_core;
    if (PyType_Ready(&core_type)) return nullptr;
    torch::autograd::_initFunctionPyTypeObject(node_type, "_NormalizeBackward", node_properties,
                                               nullptr);
    torch::autograd::registerCppFunction(typeid(Normalize), &node_type);
    PyObject* self = PyModule_Create(&module);
    if (self && PyModule_AddObjectRef(self, "Core", reinterpret_cast<PyObject*>(&core_type)))
        Py_CLEAR(self);
    return self;
}
