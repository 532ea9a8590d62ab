"""The reference path: an own path for each patient, corrected by the outcomes of similar patients in the bank.

    z_ik = u_ik + sum_r (gamma_r + delta_rk) m^r_ik        the answer (logits)
    u_i  = c + V b_i + L l_i + W o_i                        :mod:`.own_path`, or any other model, or a stack of them
    R_j  = y_j - p(u_j), u_j out of fold                    :mod:`.folds`: what the own path did not know about j
    A^r  = strongest k of a similarity, to some power       :mod:`.relations`
    m^r_ik = sum_j A^r_ij R_jk / (d^r_i + lambda_r)         :mod:`.messages`
    gamma, delta                                            :mod:`.gates`, from 0, ridge-penalised
    shares and importance of each reference                 :mod:`.shares`, in closed form

Index i is an instance, j an instance of the bank, k an output, r a relation. Everything here takes and returns arrays.
"""
